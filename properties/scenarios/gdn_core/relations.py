"""gdn_core: what holds between calls."""

import torch
from torch import Tensor

from kernelpair.call.values import poison
from kernelpair.contract.pair import Inputs, Relation
from kernelpair.trial.session import JudgedCall, Session
from properties.gdn_attention_core import cases as layer
from properties.gdn_attention_core.bound import bound as layer_bound
from properties.gdn_attention_core.bound import carried, columns_of
from properties.gdn_attention_core.relations import widened
from properties.scenarios.gdn_core.cases import GdnServingCase, _call_of, _poisoned_pools, _Request, _schedule, _Step


def _serve(case: GdnServingCase, session: Session) -> None:
    conv, ssm = _poisoned_pools(case)
    for number, step in enumerate(_schedule(case)):
        batch, given = _call_of(case, step)
        given |= {"conv_state": conv, "ssm_state": ssm}
        result = session.run(batch, given, note=f"step {number}")
        _note_errors(batch, step, given, result)
        conv, ssm = result.outputs["conv_state"], result.outputs["ssm_state"]  # the reference takes them over
        done = 0
        for request, length in step.work:
            request.outputs.append(result.outputs["core_attn_out"][done : done + length])
            request.seen += length
            done += length
            _compare_with_whole(case, session, request)
        for request in step.finished:
            conv[request.slot] = poison(case.poison, tuple(conv.shape[1:]), conv.dtype)
            ssm[request.slot] = poison(case.poison, tuple(ssm.shape[1:]), ssm.dtype)


def _note_errors(batch: layer.GdnCase, step: _Step, given: Inputs, result: JudgedCall) -> None:
    """Each request's outputs and state may be off by the bound of the step, and by what the error of its start makes of them."""
    if batch.state != "float32" or not step.work:
        return
    none, done = torch.zeros(batch.heads, batch.V, dtype=torch.float64), 0
    moved = carried(batch, widened(given), [none if request.error is None else request.error for request, _ in step.work])
    for i, ((request, length), (out, columns)) in enumerate(zip(step.work, moved)):
        decoded = i < batch.decodes
        request.allowed.append(result.bound_of("core_attn_out")[done : done + length] + out)
        request.error = columns_of(batch, result.bound_of("ssm_state")[request.slot], decoded) + columns
        done += length


def _compare_with_whole(case: GdnServingCase, session: Session, request: _Request) -> None:
    """All outputs so far against one prefill of all tokens so far, by the bound of the whole run; of somebody else's
    kernel by those of the steps, carried on."""
    if case.state != "float32" or len(request.outputs) < 2:
        return
    batch, given = _call_of(case, _Step([], [(_Request(request.number, 0), request.seen)], []))
    given["conv_state"], given["ssm_state"] = (torch.zeros_like(pool) for pool in _poisoned_pools(case))
    exact = {n: v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for n, v in given.items()}
    truth = {n: v.clone() if isinstance(v, Tensor) else v for n, v in exact.items()}
    layer.call_reference(**truth)
    allowed = torch.cat(request.allowed)
    if not session.subject.foreign:
        allowed = layer_bound(batch, exact, {name: truth[name] for name in ("core_attn_out", "ssm_state")})["core_attn_out"]
    says = f"request {request.number} in {len(request.outputs)} steps against one prefill"
    name = "core_attn_out"
    session.expect_close(name, torch.cat(request.outputs), truth[name], allowed, says)


RELATIONS = {"serve": Relation(_serve, "requests served step by step: every step, and each request as a whole")}
