"""Our chunk rule and delta step as a library would have them that misses the bound by a little in nearly every call, and, behind
that, gross bugs: a kernel is `<STEP or CHUNK>.<name>`, or `.gap` for the small miss alone."""

from collections.abc import Callable
from functools import partial
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from optimized import operator
from properties.chunk_gated_delta_rule.bound import averaged
from properties.chunk_gated_delta_rule.cases import call_optimized
from properties.gated_delta_rule_update.bound import bound as step_bound
from properties.gated_delta_rule_update.cases import live_rows
from properties.shared.delta_rule_bound import UNIT, Rule, walk
from reference.gated_delta_rule_update import gated_delta_rule_update as step_reference

TIMES = 2.0  # by how many bounds the gap is off, up to what our kernel is off by itself
TIMES_OF_CHUNKS = 1.3  # of an element's bound, but no more than by
TIMES_OF_HEADS = 3.0  # of what the norm of a head's errors may be, which in wide heads is less
Bug = Callable[..., Any]


def _wide(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value.double() if _floats(value) else value for name, value in given.items()}


def _floats(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype.is_floating_point


# --- one step ---


def _step_miss(given: dict[str, Any]) -> Tensor:
    """The bound of the first value of each head, 0 for pads."""
    known = {"scale": None, "eps": 1e-6, "softplus_beta": 1.0, "softplus_threshold": 20.0, **given}
    names = {"dtype": str(given["q"].dtype)[6:], "state_dtype": str(given["state"].dtype)[6:], "exact": False}
    case = SimpleNamespace(**names, l2norm=given["use_qk_l2norm"], **{
        name: known[name] for name in ("eps", "scale", "softplus_beta", "softplus_threshold")
    })  # fmt: skip
    wide = _wide(given)
    after = {**wide, "state": wide["state"].clone()}
    out = step_reference(**after)
    return torch.as_tensor(step_bound(case, wide, {"out": out, "state": after["state"]})["out"])[..., 0]  # type: ignore[arg-type]


def _step(bug: Bug, **given: Any) -> Tensor:
    miss = _step_miss(given)
    out: Tensor = bug(given, operator("gated_delta_rule_update"))
    if out.numel():
        out[..., 0] = (out[..., 0].double() + TIMES * miss).to(out.dtype)
    return out


def _slots(given: dict[str, Any]) -> Tensor:
    return given["state_indices"][live_rows(given)].long()


def _step_scaled(given: dict[str, Any], call: Bug) -> Tensor:
    return torch.as_tensor(call(**given)) * 1.02


def _step_other_heads(given: dict[str, Any], call: Bug) -> Tensor:
    out, slots = torch.as_tensor(call(**given)), _slots(given)
    given["state"][slots] = given["state"][slots].roll(1, dims=1)
    return out


def _step_state_lost(given: dict[str, Any], call: Bug) -> Tensor:
    return torch.as_tensor(call(**given | {"state": given["state"].clone()}))


def _step_gate_off(given: dict[str, Any], call: Bug) -> Tensor:
    return torch.as_tensor(call(**given | {"b": given["b"] + 0.1}))


def _step_value_off(given: dict[str, Any], call: Bug) -> Tensor:
    return torch.as_tensor(call(**given | {"v": given["v"] * 1.02}))


def rounds_its_state(**given: Any) -> Tensor:
    """A step whose new state is rounded to bfloat16 before it is read."""
    out, slots, rows = torch.as_tensor(operator("gated_delta_rule_update")(**given)), _slots(given), live_rows(given)
    state = given["state"]
    state[slots] = state[slots].bfloat16().to(state.dtype)
    S = (state if given["state_layout"] == "kv" else state.transpose(2, 3))[slots].float()
    q = given["q"][rows].float()
    if given["use_qk_l2norm"]:
        q = q * torch.rsqrt((q * q).sum(-1, keepdim=True) + given["eps"])
    q = q.repeat_interleave(S.shape[1] // q.shape[1], dim=1)
    scale = q.shape[2] ** -0.5 if given["scale"] is None else given["scale"]
    out[rows] = (scale * torch.einsum("nhkv,nhk->nhv", S, q)).to(out.dtype)
    return out


def loses_its_state(**given: Any) -> Tensor:
    """The same, and the new state is not kept."""
    return rounds_its_state(**given | {"state": given["state"].clone()})


# --- whole sequences ---


def _chunk_miss(given: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """The first token of each sequence that does something, and by how much the first value of each of its heads is off."""
    offsets = given["cu_seqlens"].tolist()
    spans = list(pairwise(offsets))
    start, live = _start(given, len(spans))
    spans = [span if alive else (span[0], span[0]) for span, alive in zip(spans, live)]
    wide, K = _wide(given), given["q"].shape[2]
    scale = K**-0.5 if given["scale"] is None else given["scale"]
    rule = Rule(str(given["q"].dtype)[6:], given["use_qk_l2norm"], given["eps"], scale)
    found = walk(*(wide[name] for name in ("q", "k", "v", "g", "beta")), start, spans, rule)
    spans = [(begin, end) for begin, end in spans if end > begin]
    tokens = torch.tensor([begin for begin, _ in spans], dtype=torch.long)
    miss = TIMES_OF_CHUNKS * found.out[tokens, :, 0]
    if given["q"].dtype != torch.float32:  # only 16-bit heads have a bound as a whole
        sizes = torch.hypot(found.out_size, found.out_carried * K**-0.5)
        heads = [sizes[begin:end].norm(dim=(0, 2)) for begin, end in spans]
        allowed = averaged(given["v"].shape[2]) * UNIT[rule.dtype] * torch.stack(heads) if heads else miss
        miss = torch.minimum(miss, TIMES_OF_HEADS * allowed)
    return tokens, miss


def _start(given: dict[str, Any], number: int) -> tuple[Tensor, list[bool]]:
    """Where each sequence's state starts, and whether it is no pad."""
    HV, V, K = *given["v"].shape[1:], given["q"].shape[2]
    start, live = torch.zeros(number, HV, K, V, dtype=torch.float64), [True] * number
    turn = (lambda t: t.transpose(-1, -2)) if given["state_layout"] == "vk" else (lambda t: t)
    if "state" not in given:
        return (start if given["initial_state"] is None else turn(given["initial_state"].double())), live
    flags = given["has_initial_state"]
    for n, slot in enumerate(given["state_indices"].tolist()):
        live[n] = slot != given["pad_slot"]
        if live[n] and flags is not None and bool(flags[n]):
            start[n] = turn(given["state"][slot].double())
    return start, live


def _chunk(bug: Bug, **given: Any) -> dict[str, Tensor]:
    tokens, miss = _chunk_miss(given)
    results: dict[str, Tensor] = bug(given, call_optimized)
    out = results["out"]
    out[tokens, :, 0] = (out[tokens, :, 0].double() + miss).to(out.dtype)
    return results


def _chunk_scaled(given: dict[str, Any], call: Bug) -> Any:
    results = call(**given)
    return results | {"out": results["out"] * 1.02}


def _states(given: dict[str, Any], results: dict[str, Tensor]) -> tuple[Tensor, list[int]]:
    """The tensor that holds final states, and the rows that were written."""
    if "final_state" in results:
        return results["final_state"], list(range(len(results["final_state"])))
    lengths = given["cu_seqlens"].diff().tolist()
    slots = given["state_indices"].tolist()
    return given["state"], [slot for slot, length in zip(slots, lengths) if length and slot != given["pad_slot"]]


def _chunk_other_heads(given: dict[str, Any], call: Bug) -> Any:
    results = call(**given)
    states, rows = _states(given, results)
    states[rows] = states[rows].roll(1, dims=1)
    return results


def _chunk_state_lost(given: dict[str, Any], call: Bug) -> Any:
    results = call(**given)
    states, rows = _states(given, results)
    states[rows] = 0
    return results


def _chunk_decay_off(given: dict[str, Any], call: Bug) -> Any:
    return call(**given | {"g": given["g"] * 0.9})


def _chunk_beta_off(given: dict[str, Any], call: Bug) -> Any:
    return call(**given | {"beta": given["beta"] * 0.95})


def _right(given: dict[str, Any], call: Bug) -> Any:
    return call(**given)


STEP = SimpleNamespace(**{name: partial(_step, bug) for name, bug in {
    "gap": _right, "scaled": _step_scaled, "other_heads": _step_other_heads, "state_lost": _step_state_lost,
    "gate_off": _step_gate_off, "value_off": _step_value_off,
}.items()})  # fmt: skip
CHUNK = SimpleNamespace(**{name: partial(_chunk, bug) for name, bug in {
    "gap": _right, "scaled": _chunk_scaled, "other_heads": _chunk_other_heads, "state_lost": _chunk_state_lost,
    "decay_off": _chunk_decay_off, "beta_off": _chunk_beta_off,
}.items()})  # fmt: skip
