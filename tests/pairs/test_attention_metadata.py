"""What the trial of attention_metadata takes for granted: the reference's own buffers, and the operators under torch.compile."""

import torch
from hypothesis import given, settings

import reference.attention_metadata
from optimized import operator
from properties.attention_metadata.cases import MetadataCase, inputs, strategy
from properties.scenarios.metadata_replay import carry_out

SEQ_LENS = torch.tensor([5, 0, 8])
ROWS = torch.tensor([1, 0, 1], dtype=torch.int32)
TABLE = torch.arange(32, dtype=torch.int32).reshape(2, 16)


def _ints(*shape: int) -> torch.Tensor:
    return torch.full(shape, -1, dtype=torch.int32)


def _metadata_arguments() -> tuple[object, ...]:
    outputs = _ints(4), _ints(5), _ints(5), _ints(4, 3), _ints(4), _ints(5), _ints(4, 2)
    return SEQ_LENS, ROWS, TABLE, None, torch.tensor([3, 0, 4]), 4, 1, 1, *outputs, 12, 8


def _local_arguments() -> tuple[object, ...]:
    outputs = _ints(4), _ints(5), _ints(4), _ints(4, 2)
    return 4, torch.tensor([0, 2, 2, 5]), SEQ_LENS, TABLE[:, :8].repeat(2, 1)[:3], 2, *outputs


@settings(max_examples=60, deadline=None)
@given(strategy().filter(lambda case: case.static))
def test_reference_buffers_hold_every_invariant(case: MetadataCase) -> None:
    given_inputs = inputs(case)
    steps, static = given_inputs.pop("steps"), given_inputs.pop("static")
    assert carry_out(reference.attention_metadata, steps, static, given_inputs)["faults"] == []


def test_operators_pass_opcheck() -> None:
    metadata, local = _metadata_arguments(), _local_arguments()
    calls = {
        "attention_metadata_plan": metadata[:8],
        "attention_metadata_fill": metadata,
        "local_attention_batches_plan": local[:5],
        "local_attention_batches_fill": local,
    }
    for name, arguments in calls.items():
        torch.library.opcheck(operator(name).raw, arguments)


def test_operators_compile_without_a_break() -> None:
    fill = operator("attention_metadata_fill").raw

    def refresh(*arguments: object) -> torch.Tensor:
        return fill(*arguments) + 0

    plain, compiled = _metadata_arguments(), _metadata_arguments()
    expected = refresh(*plain)
    got = torch.compile(refresh, fullgraph=True, backend="aot_eager")(*compiled)
    assert torch.equal(got, expected)
    for a, b in zip(compiled[8:15], plain[8:15], strict=True):
        assert torch.equal(a, b)  # type: ignore[arg-type]


def test_nothing_is_written_where_a_page_start_is_wrong() -> None:
    arguments = list(_metadata_arguments())
    arguments[2] = torch.where(TABLE == 20, -4, TABLE)  # the last page of one request: found only after others are read
    try:
        operator("attention_metadata_fill")(*arguments)
    except IndexError as error:
        assert "req_to_token" in str(error)  # noqa: PT017
    else:
        raise AssertionError("a negative slot was accepted")
    assert all(bool((output == -1).all()) for output in arguments[8:15])  # type: ignore[attr-defined]
