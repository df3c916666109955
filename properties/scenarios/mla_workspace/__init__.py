"""The workspace of mla_decode: its size and the automatic number of splits, against their definitions."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from kernelpair.contract.case import Case
from kernelpair.contract.pair import Cases, Coverage, Exact, Inputs, NotFuzzed, Pair, Signature, WrongCall
from optimized import mla_decode as optimized
from properties.shared.strategies import around, common
from reference import mla_decode as reference

LENGTHS = (0, 1, *around(512, 1024, 2048), 5000, 70_000, 2**32 + 1, 2**62)
PAGES = (16, 64, 128, 32, 15, 1, 0, 2**33)
HUGE = 2**33 + 5  # beyond 32 bits, which would leave 5: of one extent that a size is the product of, beside few requests
BATCHES = (0, 1, 2, 3, *around(4, 8, 32, 64, 128), 200)


@dataclass(frozen=True, kw_only=True)
class WorkspaceCase(Case):
    """The largest extents of calls that are to share a workspace."""

    max_seq_len: int = 1
    num_batches: int = 1
    num_heads: int = 1
    page_size: int = 16
    latent_dim: int = 32
    num_kv_splits: int = -1


def _case(huge: str, **fields: Any) -> WorkspaceCase:
    if huge:
        fields |= {huge: HUGE, "num_batches": min(fields["num_batches"], 3)}
    return WorkspaceCase(**fields)


CASES = st.builds(
    _case,
    **common({}, []),
    huge=st.sampled_from(("",) * 12 + ("num_heads", "latent_dim", "num_kv_splits")),
    max_seq_len=st.sampled_from(LENGTHS[1:] + LENGTHS[:1]),
    num_batches=st.sampled_from(BATCHES[1:] + BATCHES[:1]),
    num_heads=st.sampled_from((1, 5, 16, 128, 0)),
    page_size=st.sampled_from(PAGES),
    latent_dim=st.sampled_from((32, 512, 1, 1024, 7)),
    num_kv_splits=st.sampled_from((-1, -1, -1, 1, 2, 7, 200)),
)
EXTENTS = ("max_seq_len", "num_batches", "num_heads", "page_size", "latent_dim", "num_kv_splits")


def inputs(case: WorkspaceCase) -> Inputs:
    return {name: getattr(case, name) for name in EXTENTS}


def _numbers(module: object, extents: tuple[int, ...]) -> dict[str, int]:
    size, splits = getattr(module, "mla_decode_workspace_size"), getattr(module, "mla_auto_splits")  # noqa: B009
    return {"nbytes": size(*extents), "splits": splits(*extents[:4])}


def by_definition(
    max_seq_len: int, num_batches: int, num_heads: int, page_size: int, latent_dim: int, num_kv_splits: int
) -> dict[str, int]:
    """The bytes that serve every call of at most these extents, and the splits that -1 means."""
    return _numbers(reference, (max_seq_len, num_batches, num_heads, page_size, latent_dim, num_kv_splits))


def in_closed_form(
    max_seq_len: int, num_batches: int, num_heads: int, page_size: int, latent_dim: int, num_kv_splits: int
) -> dict[str, int]:
    """The same as the library says."""
    return _numbers(optimized, (max_seq_len, num_batches, num_heads, page_size, latent_dim, num_kv_splits))


def _wrong(name: str, value: object, error: type[Exception]) -> WrongCall:
    return WrongCall(lambda case, given: given | {name: value}, error, name)


PAIR = Pair(
    name="mla_workspace",
    reference=by_definition,
    optimized=in_closed_form,
    cases=Cases(
        type=WorkspaceCase,
        version=1,
        strategy=CASES,
        inputs=inputs,
    ),
    signature=Signature(
        results=("nbytes", "splits"),
        dtypes=("float32",),
    ),
    truth=Exact(),
    wrong_calls={
        **{f"{name}_negative": _wrong(name, -2, ValueError) for name in EXTENTS},
        # A number of splits may be -1.
        **{f"{name}_just_below": _wrong(name, 0 if name == "num_kv_splits" else -1, ValueError) for name in EXTENTS},
        # Not negative in 32 bits.
        **{f"{name}_far_below": _wrong(name, 16 - 2**32, ValueError) for name in EXTENTS},
        **{f"{name}_beyond_64_bits": _wrong(name, 2**63, ValueError) for name in EXTENTS},
        # In 64 bits 16.
        **{f"{name}_of_another_turn": _wrong(name, 2**64 + 16, ValueError) for name in EXTENTS},
        **{f"{name}_float": _wrong(name, 16.0, TypeError) for name in EXTENTS},
        **{f"{name}_bool": _wrong(name, True, TypeError) for name in EXTENTS},
    },
    fuzz=NotFuzzed("its arguments are numbers of any size; the closed form checks their signs alone"),
    coverage=Coverage(
        edges={
            "empty": lambda case: 0 in (case.max_seq_len, case.num_batches, case.num_heads),
            "automatic splits": lambda case: case.num_kv_splits == -1,
            "more keys than 32 bits count": lambda case: case.max_seq_len > 2**32,
            "pages that no call takes": lambda case: case.page_size < 16,
            **{f"{name} beyond 32 bits": lambda case, name=name: getattr(case, name) == HUGE  # type: ignore[misc]
               for name in ("num_heads", "latent_dim", "num_kv_splits")},
            "a batch below a power of two": lambda case: case.num_batches in (3, 7, 31, 63, 127),
        },
    ),
    tiers="python",
)
