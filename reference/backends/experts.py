"""A layer of experts: a router chooses, the outputs of each token's experts are summed, and the shared expert's is added."""

from dataclasses import asdict

from torch import Tensor

from reference.fused_moe import fused_moe, shared_expert
from reference.topk_gating import topk_gating
from serving.experts import AnyExperts, Routing, as_rows, check_router, check_shared


class Experts:
    """What optimized.backends.experts says, with references."""

    def __init__(self, routing: Routing) -> None:
        self.routing = routing
        self.router: Tensor | None = None

    def load(self, router: Tensor, w13: AnyExperts, w2: AnyExperts, correction_bias: Tensor | None = None,
             shared: tuple[AnyExperts, AnyExperts] | None = None) -> None:  # fmt: skip
        """Take over a router [E, D], packed experts, a bias [E] of the choice, and an expert for all. ValueError, TypeError."""
        check_router(router, correction_bias, w13)
        check_shared(shared)
        self.router, self.stacks, self.shared = router.float(), (w13, w2), shared
        self.correction_bias = None if correction_bias is None else correction_bias.float()

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Weights and ids [T, topk] of rows x [T, D]. ValueError before a router is loaded."""
        if self.router is None:
            raise ValueError("router: none is loaded")
        return topk_gating(x.float() @ self.router.T, correction_bias=self.correction_bias, **asdict(self.routing))

    def speak(self, rows: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """What experts ids [T, topk] make of rows [T, D], weighed; and what all share."""
        routed = fused_moe(rows, *self.stacks, weights, ids)
        return routed if self.shared is None else shared_expert(rows, *self.shared, routed)

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., D] -> [..., D]."""
        rows = as_rows(x)
        return self.speak(rows, *self.route(rows)).reshape(x.shape)
