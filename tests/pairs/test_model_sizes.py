"""Cases of models' sizes: they come up, shrink to small ones, and pass every size that a kernel branches on."""

from dataclasses import replace
from math import prod
from pathlib import Path

import hypothesis
import pytest
from hypothesis import Phase, settings

import properties
from kernelpair.call.runner import Runner
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair
from kernelpair.contract.subject import Subject
from kernelpair.contract.verdict import Verdict
from kernelpair.pytest_plugin import profile_name
from kernelpair.search import search as searching
from kernelpair.search.drawing import trials
from kernelpair.search.search import Search
from properties.local_attention_batches.cases import MOST_ENTRIES, LocalCase, pages_of
from properties.thresholds import UnknownConstant, _constants, _value, sizes

PAIRS = properties.pairs()
MEASURED = {name: pair for name, pair in PAIRS.items() if pair.coverage.measures}
DRAWS = 8000 if profile_name() == "nightly" else 3000
ANY = Candidate("scalar", "")
FIND = settings(
    max_examples=DRAWS, database=None, deadline=None, derandomize=True, phases=[Phase.generate, Phase.shrink],
    suppress_health_check=list(hypothesis.HealthCheck),
)  # fmt: skip
LARGE = {  # what a planted bug of one size needs -> the sizes of the smallest case that has it
    "decode_attention": (lambda case: len(case.lens) > 32, lambda case: (len(case.lens), max(case.lens), case.heads), (33, 1, 1)),
    "packed_linear": (lambda case: case.N > 2048, lambda case: (case.outer, case.N, case.K), ((1,), 2049, 1)),
    "causal_conv1d": (lambda case: case.dim > 1024 and any(case.lengths), lambda case: (case.dim, sum(case.lengths)), (1025, 1)),
    "extend_attention": (lambda case: sum(case.prefixes) > 1024, lambda case: (sum(case.prefixes), case.heads), (1025, 1)),
}


@pytest.mark.parametrize("pair", MEASURED.values(), ids=MEASURED)
def test_every_size_of_a_kernel_is_passed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "check", lambda subject, case, *rest: Verdict(case, ""))  # draws, and runs nothing
    wanted = pair.coverage.branches()
    unknown = wanted.keys() - pair.coverage.measures.keys()
    assert not unknown, f"{pair.name} branches on sizes that no measure of its cases counts: {sorted(unknown)}"

    def enough() -> bool:
        return all(run.tally.measures.get(name, 0) > most for name, most in wanted.items())

    run = Search(Subject(pair, ANY), Runner(), stopped=enough)
    tally = run.run(DRAWS, None, 1, None)
    short = {name: (tally.measures.get(name, 0), most) for name, most in wanted.items() if tally.measures.get(name, 0) <= most}
    assert not short, f"of {tally.cases} cases none passes (drawn, branched on): {short}"


@pytest.mark.parametrize("slow", [False, True], ids=["fast", "slow"])
@pytest.mark.parametrize("pair", [pair for pair in PAIRS.values() if pair.cases.models], ids=lambda pair: pair.name)
def test_a_check_of_usual_length_has_two_of_them(pair: Pair, slow: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "check", lambda subject, case, *rest: Verdict(case, ""))
    drawn: list[Case] = []
    models = pair.cases.models
    assert models is not None
    noted = replace(pair.cases, models=lambda slow: models(slow).map(lambda case: drawn.append(case) or case))
    Search(Subject(replace(pair, cases=noted), Candidate("any", "", slow=slow)), Runner()).run(200, None, 7, None)
    assert len({pair.line(case) for case in drawn}) > 2  # one of them is the smallest


@pytest.mark.parametrize("name", LARGE)
def test_a_case_of_a_models_size_shrinks_to_what_it_needs(name: str) -> None:
    holds, measured, smallest = LARGE[name]
    assert measured(hypothesis.find(trials(Subject(PAIRS[name], ANY)), holds, settings=FIND)) == smallest


def test_sizes_are_read_from_the_sources() -> None:
    found = {size.name: (size.value, size.counts) for size in sizes(("decode_attention",))}
    assert found["kWideBlockBytes"] == (144 << 10, "bytes")
    assert found["kMostBlockKeys"][1] == found["kLeastSplit"][1] == "keys"
    assert "kLanes" not in found and "kSums" not in found
    assert {size.name for size in sizes(("mla_decode",))} >= {"kSplitKeys", "kMostSplits"}, "of the operator"


@pytest.mark.parametrize(
    ("expression", "value"),
    [("3 << 10", 3072), ("int64_t{1} << 4", 16), ("kTwo * 8 - 1", 15), ("kWide == 64 ? 12 : kWide == 32 ? 3 : 1", 12)],
)
def test_an_expression_has_a_value(expression: str, value: int) -> None:
    assert _value(expression, {"kTwo": 2, "kWide": 64}) == value


def test_a_value_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "odd.h"
    file.write_text("constexpr int64_t kOdd = odd(3);\n")
    with pytest.raises(UnknownConstant, match="kOdd"):
        list(_constants(file, {}))


POOLS_AND_TABLES = {
    "k_cache", "v_cache", "kv_cache", "state", "conv_state", "conv_states", "ssm_state",
    "req_to_token", "page_table", "block_table",
}  # fmt: skip


@pytest.mark.parametrize("pair", [pair for pair in PAIRS.values() if POOLS_AND_TABLES & pair.signature.layouts.keys()],
                         ids=lambda pair: pair.name)
def test_rows_of_a_pool_or_table_may_lie_far_apart(pair: Pair) -> None:
    named = POOLS_AND_TABLES & pair.signature.layouts.keys()
    assert {name for name in named if "far" in pair.signature.layouts[name]} == named


SOFTWARE_TILES = {  # pair -> what tiles in software are to meet, in bf16: whole blocks of the hardware's size, and tails
    "mla_decode": [lambda case: case.latent == 512 and case.rope == 64 and max(case.lens) > 128 and case.heads == 128],
    "decode_attention": [
        lambda case: case.shared and case.width == 576 and max(case.lens) > 128 and case.heads >= 16,
        lambda case: not case.shared and max(case.lens) > 256 and case.width == case.width_v == 128,
    ],
    "extend_attention": [lambda case: max(case.prefixes) >= 250 and max(case.extends) >= 33 and case.width == 128],
    "paged_attention": [
        lambda case: not case.latent and max(case.lens) > 256 and max(case.rows) >= 33 and case.width == 128,
        lambda case: case.latent and case.width_v == 512 and max(case.lens) > 128,
    ],
    "chunk_gated_delta_rule": [lambda case: case.K == case.V == 128 and max(case.lengths) > 128],
    "gdn_attention_core": [lambda case: case.K == case.V == 128 and max(case.prefills, default=0) > 128],
    "packed_linear": [
        lambda case: prod(case.outer) > 32 and prod(case.outer) % 32 and case.N > 32 and case.N % 32 and case.K > 2048,
    ],
}


@pytest.mark.parametrize("name", SOFTWARE_TILES)
def test_tiles_in_software_meet_whole_blocks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Case] = []
    monkeypatch.setattr(searching, "check", lambda subject, case, *rest: drawn.append(case) or Verdict(case, ""))
    pair = PAIRS[name]
    assert pair.cases.models is not None
    only = replace(pair.cases, models=None, strategy=pair.cases.models(True), small=lambda case: True)
    subject = Subject(replace(pair, cases=only), Candidate("any", "", slow=True))
    Search(subject, Runner(), trial="value").run(DRAWS // 3, None, 1, None)
    in_tiles = [case for case in drawn if case.dtype == "bfloat16"]
    missed = [number for number, holds in enumerate(SOFTWARE_TILES[name]) if not any(map(holds, in_tiles))]
    assert not missed, f"of {len(in_tiles)} cases none has what entry {missed} asks for"


def test_tables_of_chunked_requests_can_be_made() -> None:
    """A page of one token beside as many and as long requests as others have would be a table that nobody makes."""
    pair = PAIRS["local_attention_batches"]
    assert pair.cases.models is not None
    with pytest.raises(hypothesis.errors.NoSuchExample):
        hypothesis.find(pair.cases.models(False), lambda case: _entries(case) > MOST_ENTRIES, settings=FIND)


def _entries(case: LocalCase) -> int:
    columns = max((pages_of(total, case.page_size) for _, total in case.requests), default=0) + case.spare
    return columns * len(case.requests)
