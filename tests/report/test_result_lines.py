"""The lines that `kernelpair check` prints as pairs end."""

from rich.console import Console

from kernelpair.cli.result_lines import print_line
from kernelpair.report.lines import PairResult


def test_the_longest_name_of_a_run_sets_the_width_of_its_first_column() -> None:
    console = Console(width=80, record=True, quiet=False)
    names = ["rms_norm", "gated_delta_rule_update_spec"]
    for name in names:
        result = PairResult(name, "avx512_bf16", "pass", cases=1234, seconds=2.0)
        print_line(console, result, [], max(map(len, names)), verbose=False)
    short, long = console.export_text().splitlines()
    assert short.index("avx512_bf16") == long.index("avx512_bf16") and short.index("pass") == long.index("pass")
    assert len(long) <= 80
