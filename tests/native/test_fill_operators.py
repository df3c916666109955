"""attention_metadata_fill and local_attention_batches_fill refuse outputs that do not fit, by name, and write to none then."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import optimized

PAGE, CHUNK = 2, 4
SEQ_LENS = torch.tensor([5, 3], dtype=torch.int32)
STARTS = torch.tensor([0, 3, 5], dtype=torch.int32)
BLOCKS = torch.arange(6, dtype=torch.int32).view(2, 3)
TABLE = torch.arange(12, dtype=torch.int32).view(2, 6)
BATCHES = {  # operator -> what comes before its outputs, sizes of these, and what comes behind
    "attention_metadata_fill": (
        (SEQ_LENS, torch.arange(2), TABLE, None, None, PAGE, 0, 1),
        {"cache_seqlens": (2,), "cu_seqlens_q": (3,), "cu_seqlens_k": (3,), "page_table": (2, 3)},
        (None, None, None, 6, 0),
    ),
    "local_attention_batches_fill": (
        (CHUNK, STARTS, SEQ_LENS, BLOCKS, PAGE),
        {"seqlens_q_local": (3,), "cu_seqlens_q_local": (4,), "seqlens_k_local": (3,), "block_table_local": (3, 2)},
        (),
    ),
}
WRONG: dict[str, tuple[Callable[[Tensor], Tensor], type[Exception]]] = {
    "shorter": (lambda out: out[:-1], ValueError),
    "narrower": (lambda out: out[..., :-1], (ValueError, IndexError)),
    "rank": (lambda out: out[None], ValueError),
    "dtype": (lambda out: out.to(torch.int64), TypeError),
}  # fmt: skip
OUTPUTS = [(name, out) for name, (_, sizes, _) in BATCHES.items() for out in sizes]
# How many requests and batches there is room for, the first output of the one and the last of the other say.
ROOM = "there is room for|block_table_local"


def _outputs(name: str) -> dict[str, Tensor]:
    return {out: torch.full(size, -7, dtype=torch.int32) for out, size in BATCHES[name][1].items()}


def _fill(name: str, outputs: dict[str, Tensor]) -> None:
    before, _, behind = BATCHES[name]
    optimized.operator(name)(*before, *outputs.values(), *behind)


@pytest.mark.parametrize("name", BATCHES)
def test_outputs_that_fit_are_filled(name: str) -> None:
    outputs = _outputs(name)
    _fill(name, outputs)
    assert all((out != -7).all() for out in outputs.values()), outputs


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize(("name", "spoiled"), OUTPUTS)
def test_an_output_that_does_not_fit_is_refused(name: str, spoiled: str, wrong: str) -> None:
    make, error = WRONG[wrong]
    outputs = _outputs(name)
    outputs[spoiled] = make(outputs[spoiled])
    with pytest.raises(error, match=f"{spoiled}|{ROOM}"):
        _fill(name, outputs)
    assert all((out == -7).all() for out in outputs.values()), outputs


@pytest.mark.parametrize(("name", "spoiled"), [each for each in OUTPUTS if each[1] != list(BATCHES[each[0]][1])[-1]])
def test_outputs_in_one_place_are_refused(name: str, spoiled: str) -> None:
    outputs = _outputs(name)
    last = list(outputs)[-1]
    outputs[spoiled] = outputs[last].flatten()[: outputs[spoiled].numel()]
    with pytest.raises(ValueError, match=f"{spoiled}|{last}"):
        _fill(name, outputs)
    assert all((out == -7).all() for out in outputs.values()), outputs
