"""The documentation is one path without gaps, and its links lead somewhere."""

import re
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
NUMBERED = sorted(ROOT.glob("docs/[0-9]*-*.md"), key=lambda page: int(page.name.partition("-")[0]))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(ROOT.glob("docs/**/*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    links = re.findall(r"\]\(([^)#\s]+)", prose)
    missing = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert not missing


@pytest.mark.parametrize(("page", "following"), list(pairwise(NUMBERED)), ids=lambda page: page.name)
def test_each_page_leads_to_the_next(page: Path, following: Path) -> None:
    last = page.read_text().rstrip().rpartition("\n")[2]
    assert last.startswith("Next: ")
    assert f"({following.name})" in last


def test_pages_are_numbered_without_gaps() -> None:
    assert [page.name.partition("-")[0] for page in NUMBERED] == [str(number) for number in range(1, len(NUMBERED) + 1)]


def test_every_contract_is_in_the_index() -> None:
    index = (ROOT / "docs" / "contracts" / "README.md").read_text()
    pages = {path.name for path in (ROOT / "docs" / "contracts").glob("*.md")} - {"README.md"}
    assert not {name for name in pages if f"({name})" not in index}


FOLDERS = ("benchmarks", "csrc", "docs", "kernelpair", "mutants", "optimized", "properties", "reference", "serving", "tests")
EXAMPLES = {"docs/4-adding-a-pair.md", "docs/5-checking-your-own-kernel.md"}  # they name files that their reader will write


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_a_page_names_exist(page: Path) -> None:
    named = set(re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./*-]*)`", page.read_text()))
    if page.relative_to(ROOT).as_posix() not in EXAMPLES:
        assert not sorted(name for name in named if "NAME" not in name and not list(ROOT.glob(name.rstrip("/"))))
