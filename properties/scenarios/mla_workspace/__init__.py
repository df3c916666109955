"""The workspace of mla_decode: its size and the automatic number of splits, against their definitions."""

from dataclasses import dataclass

from hypothesis import strategies as st

from kernelpair.contract.case import Case
from kernelpair.contract.pair import Cases, Coverage, Exact, Inputs, NotFuzzed, Pair, Signature, WrongCall
from optimized import mla_decode as optimized
from properties.shared.strategies import around, common
from reference import mla_decode as reference

LENGTHS = (0, 1, *around(512, 1024, 2048), 5000, 70_000)
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


CASES = st.builds(
    WorkspaceCase,
    **common({}, []),
    max_seq_len=st.sampled_from(LENGTHS[1:] + LENGTHS[:1]),
    num_batches=st.sampled_from(BATCHES[1:] + BATCHES[:1]),
    num_heads=st.sampled_from((1, 5, 16, 128, 0)),
    page_size=st.sampled_from((16, 64, 128, 32)),
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
    wrong_calls={f"{name}_negative": WrongCall(lambda case, given, name=name: given | {name: -2}, ValueError, name)  # type: ignore[misc]
         for name in EXTENTS},
    fuzz=NotFuzzed("its arguments are numbers of any size; the closed form checks their signs alone"),
    coverage=Coverage(
        edges={
            "empty": lambda case: 0 in (case.max_seq_len, case.num_batches, case.num_heads),
            "automatic splits": lambda case: case.num_kv_splits == -1,
            "a batch below a power of two": lambda case: case.num_batches in (3, 7, 31, 63, 127),
        },
    ),
    tiers="python",
)
