"""What a layer of experts knows of its router, and checks of what it loads."""

from dataclasses import dataclass

from torch import Tensor

from serving.packed import PackedExperts, PackedFp8Experts, PackedInt8Experts

AnyExperts = PackedExperts | PackedInt8Experts | PackedFp8Experts


@dataclass(frozen=True)
class Routing:
    """How the logits of a router become a token's experts and their weights: topk_gating's arguments, under their names."""

    topk: int
    scoring: str = "softmax"
    renormalize: bool = True
    num_expert_group: int = 1
    topk_group: int = 1
    scaling_factor: float = 1.0


def check_router(router: Tensor, correction_bias: Tensor | None, w13: AnyExperts) -> None:
    """ValueError unless a router [E, D], and a bias [E] of its choice, belong to these experts; TypeError for one of
    integers."""
    if list(router.shape) != [w13.E, w13.K]:
        raise ValueError(f"router must have shape {[w13.E, w13.K]}, got {list(router.shape)}")
    if not router.dtype.is_floating_point:
        raise TypeError(f"router must be of a float dtype, got {router.dtype}")
    if correction_bias is not None and list(correction_bias.shape) != [w13.E]:
        raise ValueError(f"correction_bias must have shape {[w13.E]}, got {list(correction_bias.shape)}")


def check_shared(shared: tuple[AnyExperts, AnyExperts] | None) -> None:
    """ValueError unless what all tokens share is one expert."""
    for name, stack in zip(("w13", "w2"), shared or ()):
        if stack.E != 1:
            raise ValueError(f"shared {name} must hold one expert, got {stack.E}")


def as_rows(x: Tensor) -> Tensor:
    """[..., D] as [T, D], dense in D."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()
