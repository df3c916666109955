"""A layer of experts: a router chooses, the outputs of each token's experts are summed, and the shared expert's is added."""

from torch import Tensor

from optimized.fused_moe import fused_moe, shared_expert
from optimized.operators import operator
from optimized.packed_linear import PackedWeight, packed_linear
from serving.experts import AnyExperts, Routing, as_rows, check_router, check_shared


class Experts:
    """y = sum_j w_j expert_j(x) + shared(x), the experts and weights of each token by a router that is float32.

        layer = Experts(Routing(topk=8))
        layer.load(router, PackedExperts.pack(gate_up), PackedExperts.pack(down))   # [E, D], [E, 2I, D], [E, D, I]
        y = layer(x)                                                               # [..., D] -> [..., D]
    """

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.router: PackedWeight | None = None
        self.shared: tuple[AnyExperts, AnyExperts] | None = None

    def load(
        self, router: Tensor, w13: AnyExperts, w2: AnyExperts, correction_bias: Tensor | None = None,
        shared: tuple[AnyExperts, AnyExperts] | None = None,
    ) -> None:  # fmt: skip
        """Take over a router [E, D], packed experts of any kind, a bias [E] of the choice and an expert that all tokens share.

        Raises ValueError (shapes, more than one shared expert) and TypeError (dtypes).
        """
        check_router(router, correction_bias, w13)
        check_shared(shared)
        self.w13, self.w2, self.shared = w13, w2, shared
        self.correction_bias = None if correction_bias is None else correction_bias.float()
        self.router = PackedWeight.pack(router.float())

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights float32 and ids int32 [T, topk] of rows x [T, D]. ValueError before a router is loaded."""
        if self.router is None:
            raise ValueError("router: none is loaded")
        r, logits = self.routing, packed_linear(x.float(), self.router)
        chosen: tuple[Tensor, Tensor] = operator("topk_gating")(
            logits, r.topk, r.scoring, r.renormalize, self.correction_bias, r.num_expert_group, r.topk_group, r.scaling_factor
        )
        return chosen

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., D] -> [..., D]."""
        rows = as_rows(x)
        weights, ids = self.route(rows)
        return self.speak(rows, weights, ids).reshape(x.shape)

    def speak(self, rows: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """What experts ids [T, topk] make of rows [T, D], weighed; and what all share."""
        out = fused_moe(rows, self.w13, self.w2, weights, ids)
        return out if self.shared is None else shared_expert(rows, *self.shared, routed=out)
