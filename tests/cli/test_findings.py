"""Pages of findings: read strictly, run again, and found wrong where they say what the case does not show."""

from pathlib import Path

import pytest

import properties
from kernelpair.cli import main
from kernelpair.cli.findings import unseen
from kernelpair.contract.case import to_line
from kernelpair.contract.other_cpu import OtherCpu
from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.providers.findings import PageError, read_page, untrue
from kernelpair.providers.provider import provider, ready
from properties.store_cache.cases import StoreCacheCase
from properties.suite import SUITE

PAGES = sorted((properties.ROOT / "docs" / "findings").glob("*-*.md"))
CASE = to_line("store_cache", 1, StoreCacheCase(rows=2, dtype="float32"))
MINE = """
from kernelpair.providers.provider import adapts

@adapts("store_cache")
def store_cache(k, v, k_cache, v_cache, indices, pad_slot=None):
    k_cache[indices], v_cache[indices] = k, -v
"""
PAGE = """# Findings: {provider} 1.0

## M-1 v is negated

| | |
|---|---|
| severity | silent wrong result |

```json
{case}
```

```
{says}
```
"""


def page(folder: Path, says: str, spec: str = "mine.py", case: str = CASE) -> str:
    (folder / "mine.py").write_text(MINE)
    (folder / "mine-1.0.md").write_text(PAGE.format(provider=spec, case=case, says=says))
    return str(folder / "mine-1.0.md")


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_our_pages_are_whole(path: Path) -> None:
    found = read_page(path)
    pairs = properties.pairs()
    assert found and path.stem == f"{found[0].provider}-{found[0].version}"
    text = path.read_text()
    for finding in found:
        assert f"| {finding.id} | " in text and f"`kernelpair replay {finding.id}`" in text
        assert finding.cases and all(any(f'"pair":"{name}"' in case for name in pairs) for case, _ in finding.cases)


@pytest.mark.parametrize("name", ["VC-01", "VC-02", "VC-11", "VC-13", "VC-33", "ZT-01", "SG-07", "SG-09"])
def test_findings_are_reproduced_where_the_wheel_is(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A few of them: `make findings` runs all."""
    found = next(finding for path in PAGES for finding in read_page(path) if finding.id == name)
    why_not = ready(provider(found.provider)) or unseen(SUITE, found)
    if why_not:
        pytest.skip(f"{found.provider}: {why_not}")
    assert main(["replay", name]) == 1
    out = capsys.readouterr().out
    assert all(line.partition(":")[0] in out for _, says in found.cases for line in says)


def test_a_finding_that_shows_on_another_cpu_is_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Told of that CPU the kernel is wrong, else it is right; where nobody can be told, it is not run and that is said."""
    monkeypatch.chdir(tmp_path)
    good = page(tmp_path, "value: v_cache: 2 of 2 elements differ…")
    telling = "TOLD = False\n\n\ndef tell(first):\n    global TOLD\n    TOLD = True\n"
    Path("mine.py").write_text(MINE.replace("k, -v", "k, -v if TOLD else v") + telling)
    Path(good).write_text(Path(good).read_text().replace("| severity", "| cpu | other |\n| severity"))
    obstacle = ""
    other = OtherCpu("other", lambda: obstacle, f"{tmp_path}/mine.py:tell")
    monkeypatch.setattr(SUITE, "cpus", [other])  # kept by whoever asked before
    assert main(["findings", good]) == 0, capsys.readouterr().out
    assert "M-1 v is negated: as the page says" in capsys.readouterr().out
    Path(good).write_text(Path(good).read_text().replace("| cpu | other |\n", ""))
    assert main(["findings", good]) == 1
    assert "the case passes" in capsys.readouterr().out
    Path(good).write_text(Path(good).read_text().replace("| severity", "| cpu | other |\n| severity"))
    obstacle = "nobody can be told here"
    assert main(["findings", good]) == 3
    assert "not run: --cpu other: nobody can be told here" in capsys.readouterr().out


def test_a_finding_of_one_build_is_run_where_the_cpu_gets_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So is one of a kernel that only some machines have."""
    monkeypatch.chdir(tmp_path)
    good = page(tmp_path, "value: v_cache: 2 of 2 elements differ…")
    Path(good).write_text(Path(good).read_text().replace("| severity", "| build | `fast.so` |\n| severity"))
    Path("mine.py").write_text(MINE + "\ndef variant():\n    return 'fast.so'\n")
    assert main(["findings", good]) == 0, capsys.readouterr().out
    Path("slow.py").write_text(MINE + "\ndef variant():\n    return 'slow.so'\n")
    Path(good).write_text(Path(good).read_text().replace("mine.py", "slow.py"))
    assert main(["findings", good]) == 3
    assert "not run: it is of fast.so, and this CPU gets slow.so" in capsys.readouterr().out
    Path("none.py").write_text(MINE.replace('"store_cache"', '"store_cache", absent=lambda: "no such instruction here"'))
    Path(good).write_text(Path(good).read_text().replace("| build | `fast.so` |\n", "").replace("slow.py", "none.py"))
    assert main(["findings", good]) == 3
    assert "not run: no such instruction here" in capsys.readouterr().out
    assert main(["check", "store_cache", "--provider", "none.py", "--examples", "5"]) == 3
    assert "no such instruction here" in capsys.readouterr().out


def test_a_finding_of_a_library_that_is_not_here_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """That is said, and the other pages are run. One that is here in another version is wrong usage."""
    monkeypatch.chdir(tmp_path)
    good = page(tmp_path, "value: v_cache: 2 of 2 elements differ…")
    Path("gone.py").write_text(MINE + "\ndef missing():\n    return 'no library is named'\n\ndef version():\n    return ''\n")
    Path("gone-1.0.md").write_text(Path(good).read_text().replace("mine.py", "gone.py").replace("M-1", "G-1"))
    assert main(["findings", "gone-1.0.md"]) == 3
    out = capsys.readouterr().out
    assert "G-1 v is negated: not run: no library is named" in out and "1 not run" in out
    assert main(["findings", "gone-1.0.md", good]) == 0
    out = capsys.readouterr().out
    assert "G-1 v is negated: not run: no library is named" in out and "M-1 v is negated: as the page says" in out
    Path("newer.py").write_text(MINE + "\ndef version():\n    return '1.1'\n")
    Path("newer-1.0.md").write_text(Path(good).read_text().replace("mine.py", "newer.py"))
    assert main(["findings", "newer-1.0.md"]) == 2
    assert "M-1 is about newer.py 1.0, installed is 1.1" in capsys.readouterr().err


def test_a_page_is_run_and_must_tell_the_truth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    good = page(tmp_path, "value: v_cache: 2 of 2 elements differ…")
    assert main(["findings", good]) == 0
    assert "M-1 v is negated: as the page says" in capsys.readouterr().out
    assert main(["findings", page(tmp_path, "value: k_cache: 2 of 2 elements differ…")]) == 1
    assert "the page says value: k_cache" in capsys.readouterr().out
    passing = to_line("store_cache", 1, StoreCacheCase(rows=0))
    assert main(["findings", page(tmp_path, "value: v_cache: 2 of 2…", case=passing)]) == 1
    assert "the case passes" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("# Something else", "no line '# Findings"),
        (PAGE.format(provider="p", case=CASE, says="nonsense: out"), "is no line of a verdict"),
        (PAGE.format(provider="p", case=CASE, says="value: x").replace("| silent wrong result |", ""), "no severity"),
        (PAGE.format(provider="p", case=CASE, says="value: x") + f"\n```json\n{CASE}\n```\n", "blocks in pairs"),
    ],
)
def test_a_page_that_is_not_whole_is_refused(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "p.md").write_text(text)
    with pytest.raises(PageError, match=says):
        read_page(tmp_path / "p.md")


def test_last_digits_may_differ_between_cpus() -> None:
    verdict = Verdict(None, "", [Failure("value", "out", "3 of 8 differ, the worst [0, 1]: 0.125 for 1.5e-05, ratio 15.3")])
    assert not untrue(["value: out: 3 of 8 differ, the worst [0, 1]: 0.1251 for 1.49e-05, ratio 15.2"], verdict)
    assert untrue(["value: out: 4 of 8 differ, the worst [0, 1]: 0.125 for 1.5e-05, ratio 15.3"], verdict)
    assert untrue(["value: out: 3 of 8 differ, the worst [0, 1]: 0.13 for 1.5e-05, ratio 15.3"], verdict)
    assert not untrue(["value: out: 3 of 8 differ…"], verdict)
    assert untrue(["value: out: 3 of 8 differ", "nonfinite: out: x"], verdict)


def test_no_script_of_a_case_that_passes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", CASE, "--tier", "scalar", "--script", str(tmp_path / "bug.py")]) == 2
    assert "--script: the case passes on scalar: there is nothing to show" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_save_adds_a_case_to_the_corpus_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved = tmp_path / "corpus.jsonl"
    monkeypatch.setattr(properties, "saved_cases", lambda name: saved)
    assert main(["replay", CASE, "--tier", "scalar", "--save"]) == 2
    assert not saved.exists(), "a case that no candidate fails on says nothing"
    for _ in range(2):
        assert main(["replay", CASE, "--tier", "scalar", "--save-passing"]) == 0
    assert saved.read_text() == CASE + "\n"

