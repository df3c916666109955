"""What a contract admits, and our kernels do not do everywhere, is neither a wrong value nor a broken relation."""

from typing import Any

import pytest
import torch
from torch import Tensor

import properties
from kernelpair.call.runner import InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.subject import Subject
from kernelpair.trial.check import check, read_case
from properties.fp8_linear.cases import dense_weight
from properties.fused_moe.calls import call_reference
from reference import decode_attention as decode
from reference.rms_norm import rms_norm
from reference.topk_gating import topk_gating


def of_flushed_sums(x: Tensor, weight: Tensor | None, eps: float = 1e-6, residual: Tensor | None = None, **more: Any) -> Tensor:
    """As some CPUs convert to bfloat16: what is left in residual is no subnormal number."""
    out = rms_norm(x, weight, eps, residual, **more)
    if residual is not None:
        residual[residual.abs() < torch.finfo(residual.dtype).tiny] = 0
    return out


def of_rounded_weights(**given: Any) -> None:
    """As tiles multiply: weights have the dtype of the values."""
    kept = decode.attention_core
    decode.attention_core = _rounded_core  # type: ignore[assignment]
    try:
        decode.decode_attention(**given)
    finally:
        decode.attention_core = kept


def _rounded_core(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float, logit_cap: float, sinks: None) -> Tensor:
    """Of as many heads as the keys have, without a cap and sinks."""
    z = torch.einsum("thd,nhd->thn", q.float(), k.float()) * sm_scale
    p = torch.exp(z - z.amax(-1, keepdim=True))
    sums = torch.einsum("thn,nhd->thd", p.to(q.dtype).float(), v.float())
    return (sums / p.sum(-1, keepdim=True)).to(q.dtype)


def of_rounded_terms(**given: Any) -> Tensor:
    """What each expert says has the call's dtype before it is added."""
    chosen = [given[name].split(1, dim=1) for name in ("topk_weights", "topk_ids")]
    terms = [call_reference(**given | {"topk_weights": weights, "topk_ids": ids}) for weights, ids in zip(*chosen)]
    return torch.stack(terms).float().sum(0).to(given["x"].dtype)


def of_rounded_codes(x: Tensor, bias: Tensor | None = None, **given: Any) -> Tensor:
    """A code times its scale has x's dtype before it is multiplied."""
    given.pop("layout", None)
    y = x.float() @ dense_weight(given).to(x.dtype).float().T
    return (y if bias is None else y + bias.float()).to(x.dtype)


def of_groups_by_themselves(**given: Any) -> tuple[Tensor, Tensor]:
    """Groups are chosen in another loop, whose scores round otherwise than those of a plain choice."""
    weights, ids = topk_gating(**given)
    return weights * (1 + 2.0**-22 * (given["num_expert_group"] > 1)), ids


def of_scales_multiplied_first(form: str, **given: Any) -> Tensor:
    """Bytes with scales take the product of both, where floats take one after the other."""
    out = properties.pairs()["int8_linear"].reference(form=form, **given)
    return out * (1 + 2.0**-23 * (form == "matmul"))


def of_lengths_that_cut(**given: Any) -> None:
    """The longest request says how keys are cut, in cross attention too."""
    properties.pairs()["extend_attention"].reference(**given)
    given["out"].mul_(1 + 2.0**-23 * int(given["seq_lens"].max() % 2))


def of_sums_in_float32(form: str, **given: Any) -> Any:
    """A sum that leaves float32 is no number afterwards."""
    wide = {name: value.float() if isinstance(value, Tensor) and value.dtype.is_floating_point else value
            for name, value in given.items()}
    out = properties.pairs()["causal_conv1d"].reference(form=form, **wide)
    return torch.where(out.isinf(), torch.nan, out).to(given["x"].dtype)


def of_decays_as_exact_as_scores(**given: Any) -> Any:
    """An exponential that is off by 2^-18."""
    return properties.pairs()["chunk_gated_delta_rule"].reference(**given | {"g": given["g"] + 2.0**-18})


def of_weighted_rows(**given: Any) -> Tensor:
    """A weight on the input has products of its own, which are summed in another order."""
    return call_reference(**given) * (1 + 2.0**-23 * given["apply_router_weight_on_input"])


@pytest.mark.parametrize(
    ("kernel", "line"),
    [
        (of_groups_by_themselves, '{"pair":"topk_gating","v":1,"trial":"groups","tokens":5,"experts":8,"groups":4,"kept":4}'),
        (of_scales_multiplied_first, '{"pair":"int8_linear","v":1,"trial":"two_steps","outer":[3],"N":33,"K":31}'),
        (of_scales_multiplied_first, '{"pair":"int8_linear","v":1,"trial":"two_steps","symmetric":false,"values":"exact"}'),
        (of_lengths_that_cut, '{"pair":"extend_attention","v":1,"trial":"cross","prefixes":[2],"encoder":[5],"cross":true}'),
        (of_sums_in_float32, '{"pair":"causal_conv1d","v":1,"seed":1,"dtype":"bfloat16","trial":"overflow","form":"varlen",'
         '"states":false}'),
        (of_sums_in_float32, '{"pair":"causal_conv1d","v":1,"seed":1,"trial":"overflow"}'),
        (of_decays_as_exact_as_scores, '{"pair":"chunk_gated_delta_rule","v":1,"trial":"decay","lengths":[2],"beta":"zero"}'),
        (of_weighted_rows, '{"pair":"fused_moe","v":1,"trial":"on_input","tokens":5,"experts":3,"topk":1,"D":64,"I":32}'),
    ],
)
def test_another_form_of_somebody_elses_kernel_owes_no_bits(kernel: Any, line: str) -> None:
    pair, case = read_case(properties.pairs(), line)
    candidate = Candidate("admitted", f"{__name__}:{kernel.__name__}")
    assert check(Subject(pair, candidate, foreign=True), case, InProcess(candidate)).failures == []


@pytest.mark.parametrize(
    ("kernel", "line"),
    [
        (
            of_flushed_sums,
            '{"pair":"rms_norm","v":1,"seed":1031,"dtype":"bfloat16","trial":"zero_residual","width":16384,'
            '"size":7.703719777548943e-34,"peak":true,"eps":1e-12}',
        ),
        (
            of_rounded_weights,
            '{"pair":"decode_attention","v":1,"seed":57,"dtype":"bfloat16","trial":"cores","lens":[2],"width":8,"width_v":128}',
        ),
        *(
            (of_rounded_terms, f'{{"pair":"fused_moe","v":1,"seed":{seed},"dtype":"float16","trial":"scaled","tokens":17,'
             '"experts":3,"topk":2,"D":64,"I":32}')
            for seed in (2, 13)
        ),
        (
            of_rounded_codes,
            '{"pair":"fp8_linear","v":1,"seed":57,"dtype":"float16","outer":[3],"N":32,"K":31,"block":"32x64","values":"uniform",'
            '"magnitude":1e-6}',
        ),
    ],
)
def test_an_admitted_rounding_passes(kernel: Any, line: str) -> None:
    pair, case = read_case(properties.pairs(), line)
    candidate = Candidate("admitted", f"{__name__}:{kernel.__name__}")
    assert check(Subject(pair, candidate), case, InProcess(candidate)).failures == []
