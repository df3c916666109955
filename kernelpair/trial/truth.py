"""What the contract expects of a call: the reference's outputs in float64, and how far from them a candidate may be."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.place import resolve
from kernelpair.call.results import named_results
from kernelpair.call.runner import HarnessError
from kernelpair.contract.case import Case
from kernelpair.contract.mistakes import place_of
from kernelpair.contract.pair import Bound, Inputs, Outputs, Pair, RoundedOnce, Truth, Within
from kernelpair.trial.purity import unchanged


@dataclass(frozen=True)
class Expected:
    """What the contract says of a call: its outputs in float64, their bound, and the inputs in float64 as they were."""

    truth: Outputs
    inputs: Inputs
    bound: Bound


Masks = Mapping[str, Tensor | bool]
"""Mutated argument -> the elements that the contract writes."""
NOTHING_EXPECTED = Expected({}, {}, {})


def widen(value: Any) -> Any:
    """Float tensors exactly in float64, other tensors cloned."""
    if not isinstance(value, Tensor):
        return value
    return value.to(torch.float64) if value.dtype.is_floating_point and value.dtype != torch.float64 else value.clone()


def widened(pair: Pair, settled: Inputs) -> Inputs:
    """Copies of the inputs as the truth is computed from them: in float64, unless the pair compares bits."""
    copies = {
        name: (value.clone() if pair.exact else widen(value)) if isinstance(value, Tensor) else value
        for name, value in settled.items()
    }
    return resolve(copies)


def truth_of(pair: Pair, settled: Inputs) -> tuple[Outputs, Inputs]:
    """The reference's mutated arguments and results, in float64; and the widened inputs as they were."""
    arguments = widened(pair, settled)
    kept = dict(arguments)
    for name in (*pair.signature.written, *pair.signature.scratch):
        if isinstance(arguments.get(name), Tensor):
            kept[name] = arguments[name].clone()
    who = f"{place_of(pair.reference)}: pair {pair.name}"
    with unchanged(who, "reference", arguments, (*pair.signature.written, *pair.signature.scratch)):
        result = _referred(pair, arguments)
    truth: Outputs = {name: arguments[name] for name in pair.signature.written if isinstance(arguments.get(name), Tensor)}
    try:
        truth |= named_results(result, tuple(pair.signature.results))
    except TypeError as error:
        raise HarnessError(f"{who}: the reference: {error} (Signature.results)") from None
    return truth, kept


def _referred(pair: Pair, arguments: Inputs) -> Any:
    """What the reference returns. HarnessError where `inputs` makes other arguments than it takes."""
    try:
        return pair.reference(**arguments)
    except TypeError as error:
        begun = error.__traceback__ is None or error.__traceback__.tb_next is not None
        if begun or not hasattr(pair.reference, "__code__"):  # that of a builtin has no frame
            raise
        makes = f"`inputs` makes {', '.join(arguments)}"
        raise HarnessError(f"{place_of(pair.reference)}: pair {pair.name}: {makes}; of the reference: {error}") from None


def bound_of(pair: Pair, way: Within, case: Case, inputs: Inputs, truth: Outputs) -> Bound:
    """The bound of each output. HarnessError where it names what is no output."""
    with unchanged(f"{place_of(way.bound)}: pair {pair.name}", "bound", {"inputs": inputs, "truth": truth}):
        bound = way.bound(case, inputs, truth)
    if not isinstance(bound, Mapping):
        what = f"a {type(bound).__name__}, not a mapping of outputs to theirs"
        raise HarnessError(f"{place_of(way.bound)}: pair {pair.name}: the bound is {what}; the outputs are {', '.join(truth)}")
    refuse_unknown_outputs(pair.name, way, bound, truth)
    return {name: _of_each_element(pair.name, way, name, each, truth[name]) for name, each in bound.items()}


def _of_each_element(pair: str, way: Within, name: str, bound: Tensor | RoundedOnce, truth: Any) -> Tensor | RoundedOnce:
    """A bound of rows, or one for all, as one for each element of the truth."""
    if not isinstance(bound, Tensor) or not isinstance(truth, Tensor):
        return bound
    try:
        return bound.expand(truth.shape)
    except RuntimeError:
        shapes = f"{list(bound.shape)} for one of shape {list(truth.shape)}"
        raise HarnessError(f"{place_of(way.bound)}: pair {pair}: the bound of {name} has shape {shapes}") from None


def settled_by(
    pair: Pair, way: Truth | None, case: Case, expected: Expected, outputs: Outputs, masks: Masks
) -> tuple[Expected, Masks]:
    """What a call is judged by where the contract leaves it a choice (`Within.settle`), and which elements are judged."""
    if not isinstance(way, Within) or way.settle is None:
        return expected, masks
    inputs, truth, open_elements = expected.inputs, expected.truth, dict(masks)
    if all(isinstance(outputs.get(name), Tensor) for name in truth):  # else a result is missing, which is reported
        with unchanged(pair.name, "settle", {"inputs": inputs, "truth": truth, "outputs": outputs}):
            truth = way.settle(case, inputs, truth, outputs)
        for name, value in truth.items():
            if value.dtype.is_floating_point and name not in pair.signature.written:
                open_elements[name] = ~value.isnan()
    return replace(expected, truth=truth, bound=bound_of(pair, way, case, inputs, truth)), open_elements


def mark(pair: Pair, case: Case, name: str, inputs: Inputs) -> Tensor | bool:
    """The elements of an argument that the contract writes. HarnessError where the mask does not fit it."""
    written, shape = pair.signature.written[name], inputs[name].shape
    mask = written(case, inputs)
    try:
        torch.as_tensor(mask).expand(shape)
    except RuntimeError:
        shapes = f"{list(torch.as_tensor(mask).shape)} for one of shape {list(shape)}"
        says = f"the mask of {name} (Signature.written) has shape {shapes}"
        raise HarnessError(f"{place_of(written)}: pair {pair.name}: {says}") from None
    return mask


def refuse_unknown_outputs(pair: str, way: Within, bound: Bound, truth: Outputs) -> None:
    """HarnessError where a bound is given for what is no output: it would judge nothing."""
    unknown = [name for name in bound if name not in truth]
    if unknown:
        raise HarnessError(
            f"{place_of(way.bound)}: pair {pair}: a bound for {', '.join(unknown)}, which is no output; "
            f"the outputs of this call are {', '.join(truth) or 'none'}"
        )


def result_dtype(pair: Pair, case: Case, name: str, truth: Tensor) -> torch.dtype:
    """The dtype that a result is to have."""
    if pair.signature.result_dtype is not None:
        return pair.signature.result_dtype(case, name)
    floating = truth.dtype.is_floating_point and not pair.exact
    return getattr(torch, case.dtype) if floating else truth.dtype


def mask_of(masks: Masks, name: str, truth: Tensor) -> Tensor | None:
    """Which elements of an output are judged; None for all."""
    mask = masks.get(name)
    return mask.expand(truth.shape) if isinstance(mask, Tensor) else None
