"""serving: the arguments of a case, both sides that carry it out, and its edges."""

from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import poison
from kernelpair.contract.pair import Inputs
from optimized.backends.gdn import GdnBackend
from optimized.backends.latent import LatentAttention
from optimized.backends.mla import MlaBackend
from optimized.backends.paged import PagedBackend
from optimized.backends.recorded import RecordedDecode
from optimized.backends.slot import SlotBackend
from optimized.causal_conv1d import PackedConvWeight
from properties.scenarios.serving.cases import (
    GDN,
    GDN_DIM,
    GDN_WIDTH,
    ROWS,
    SPECS,
    STATES,
    ServingCase,
    bare,
    columns_of,
    has_mla_backend,
    is_gdn,
    prefills_slots,
    slots_of,
    specs,
    unscaled,
)
from properties.scenarios.serving.judge import REFERENCE
from properties.scenarios.serving.plan import INTERRUPTIONS, Planned, plan
from properties.scenarios.serving.server import Server, Side
from properties.suite import load_library

OPTIMIZED = Side(SlotBackend, PagedBackend, MlaBackend, GdnBackend, LatentAttention, RecordedDecode, PackedConvWeight)
EMULATED_STEPS = 12
SPLIT = 512  # keys that no backend takes in one piece


def load() -> None:
    """What its workers begin with: the library, and what torch imports at the first recording, which takes a second."""
    from torch.fx.experimental.proxy_tensor import make_fx  # itself most of that second, which nobody else is to wait for

    load_library()
    make_fx(lambda x: x + 1)(torch.ones(1))


def serve_reference(case: ServingCase, table: Tensor, **memory: Tensor) -> dict[str, Any]:
    """Carry out the steps of a server's life with the reference backends; the judge must find nothing wrong with it."""
    return Server(case, REFERENCE, table, memory).serve()


def serve_optimized(case: ServingCase, table: Tensor, **memory: Tensor) -> dict[str, Any]:
    """The same with the optimized backends."""
    return Server(case, OPTIMIZED, table, memory).serve()


def inputs(case: ServingCase) -> Inputs:
    """The request table and every layer's pools, all poison."""
    dtype: torch.dtype = getattr(torch, case.dtype)
    found: Inputs = {"case": case, "table": poison(case.poison, (ROWS, columns_of(case)), torch.int32)}
    for number, spec in enumerate(specs(case)):
        if is_gdn(spec):
            found |= _states(case, number, dtype)
            continue
        if "reads" in spec:
            continue
        slots = slots_of(case)
        held: torch.dtype = getattr(torch, case.float8) if "k_scale" in spec else dtype
        found[f"k{number}"] = poison(case.poison, (slots, spec["kv_heads"], spec["head_dim"]), held)
        if not spec.get("latent"):
            found[f"v{number}"] = poison(case.poison, (slots, spec["kv_heads"], spec["v_head_dim"]), held)
    return found


def _states(case: ServingCase, number: int, dtype: torch.dtype) -> dict[str, Tensor]:
    columns = (GDN_WIDTH - 1, GDN_DIM) if case.conv_layout == "SD" else (GDN_DIM, GDN_WIDTH - 1)
    widths = [GDN["head_k_dim"], GDN["head_v_dim"]]
    shape = (STATES, GDN["num_v_heads"], *(widths if case.state_layout == "kv" else reversed(widths)))
    held = torch.float32 if case.state == "float32" else torch.bfloat16
    return {
        f"conv{number}": poison(case.poison, (STATES, *columns), dtype),
        f"ssm{number}": poison(case.poison, shape, held),
    }


def _has(case: ServingCase, kind: str) -> list[Planned]:
    """The steps of this kind in which something happens."""
    return [planned for planned in plan(case) if planned.step[0] == kind and (planned.calls or planned.refused)]


def _calls(case: ServingCase, *modes: str) -> bool:
    return any(call.mode in modes for planned in plan(case) for call in planned.calls)


EDGES: dict[str, Any] = {
    **{f"layers {stack}": lambda case, stack=stack: case.stack == stack and _calls(case, "decode") for stack in SPECS},
    "slots": lambda case: not case.paged and _calls(case, "decode"),
    "pages": lambda case: case.paged and case.page > 1 and _calls(case, "decode"),
    "verified drafts of latents in pages": lambda case: case.stack == "latent" and not prefills_slots(case)
    and _calls(case, "target_verify"),
    "backends that are told no sizes": lambda case: bare(case) and _calls(case, "decode"),
    "latents of the mla backend": lambda case: has_mla_backend(case) and _calls(case, "decode"),
    "replayed decodes": lambda case: case.replayed and _calls(case, "decode"),
    "decodes that are replayed, and others": lambda case: len({
        call.padded is None for planned in _has(case, "decode") for call in planned.calls}) == 2,
    "recorded decodes of batches that change": lambda case: case.replayed and case.recorded and len({
        len(call.work) for planned in _has(case, "decode") for call in planned.calls
    }) > 1,
    "a replay without requests": lambda case: _calls(case, "idle"),
    "prefill in chunks": lambda case: any(
        one.start > one.request.shared for planned in _has(case, "extend") for call in planned.calls
        for one in call.work[call.num_decodes :]
    ),
    "prefill and decode in one batch": lambda case: _calls(case, "mixed"),
    **{f"layers {stack} with more": lambda case, stack=stack: case.stack == stack and case.more != "" and _calls(case, "decode")
       for stack in ("encoder", "local", "float8", "latent")},
    "q and k that are not normalised": lambda case: case.stack == "hybrid" and case.seed // 2 % 3 == 0 and _calls(case, "decode"),
    "float8 without scales": lambda case: unscaled(case) and _calls(case, "decode"),
    "drafts of a draft layer": lambda case: _calls(case, "draft_decode"),
    "drafts of several steps that are recorded": lambda case: case.recorded and any(
        call.step_id > 0 and call.padded is not None for planned in plan(case) for call in planned.calls
    ),
    **{f"between two steps of a draft: {says}": lambda case, says=says: any(
        call.interrupted == says for planned in plan(case) for call in planned.calls
    ) for says in INTERRUPTIONS[1:]},
    "rejected tokens": lambda case: any(
        call.mode == "target_verify" and call.save and call.finals is not None and min(call.finals) < call.drafts
        for planned in _has(case, "verify") for call in planned.calls
    ),
    "a shared prefix": lambda case: any(planned.shared_with for planned in plan(case)),
    "pools exhausted": lambda case: any(planned.refused == "PoolExhausted" for planned in plan(case)),
    "slots used again": lambda case: any(
        planned.arrives is not None and not planned.refused and any(earlier.freed for earlier in plan(case)[: planned.index])
        for planned in plan(case)
    ),
    "a wrong call": lambda case: bool(_has(case, "bad")),
    **{f"decodes that split their keys over {says}": lambda case, served=served: served(case) and any(
        call.mode == "decode" and max(one.end for one in call.work) > SPLIT for planned in plan(case) for call in planned.calls
    ) for says, served in (("slots", prefills_slots), ("pages of latents", has_mla_backend), ("pages", lambda case: case.paged))},
    "thirty steps": lambda case: len(case.steps) >= 30,
    "requests with and without encoder tokens": lambda case: any(
        call.encoding and len(call.encoding) < len(call.work) for planned in plan(case) for call in planned.calls
    ),
}
