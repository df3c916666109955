"""The page: everything is in it, nothing comes from elsewhere, and a browser shows it."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kernelpair.call.runner import Isolated
from kernelpair.report.browser import browser, screenshot
from kernelpair.report.exhibit import Again, Exhibit, exhibits
from kernelpair.report.html import ReportPage, Series, rendered, write_page
from kernelpair.report.lines import PairResult, result_of
from kernelpair.search.jobs import Ended, Job
from kernelpair.search.search import Search
from tests.selftest.toy import PAIR, toy_subject

KERNELS = ("wrong_tail", "unwritten", "nan_output", "writes_right", "clobbers_neighbour")
MOST_BYTES = 1_000_000


def found_in(kernel: str) -> PairResult:
    subject = toy_subject(kernel)
    with Isolated(subject.candidate) as runner:
        search = Search(subject, runner)
        search.run(200, None, 3, None)
    return result_of(Ended(Job("toy", kernel), search.tally), PAIR)


@pytest.fixture(scope="module")
def results() -> list[PairResult]:
    return [found_in(kernel) for kernel in KERNELS]


AGAIN = Again(lambda pair, name: toy_subject(name), (), lambda pair: [("good", ""), ("tier9", "this CPU lacks it")])


@pytest.fixture(scope="module")
def shown(results: list[PairResult]) -> tuple[list[Exhibit], int]:
    return exhibits(results, AGAIN, 10)


@pytest.fixture(scope="module")
def page(results: list[PairResult], shown: tuple[list[Exhibit], int]) -> str:
    history = [Series("Speed", "cases a second", ["a1", "b2", "c3"], {"toy good": [1.0, 2.0, float("nan")]})]
    made = ReportPage("kernelpair check", "Failed: five kernels.", False, [("seed", "3")], *shown, results, histories=history)
    return rendered(made)


class Structure(HTMLParser):
    """Tags with their attributes, in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))


def test_nothing_is_fetched_and_nothing_runs(page: str) -> None:
    tags = Structure(page).found
    assert not {tag for tag, _ in tags} & {"script", "link", "iframe", "object", "embed"}
    for tag, attributes in tags:
        assert not [name for name in attributes if name.startswith("on")], tag
        for name in ("src", "href", "xlink:href", "srcset", "action"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/png")), (tag, attributes[name])
    assert not re.findall(r"@import|url\((?!#)", page)


def test_every_picture_has_words(page: str) -> None:
    pictures = [attributes for tag, attributes in Structure(page).found if tag == "svg"]
    assert len(pictures) > 10
    assert all(picture.get("role") == "img" and len(picture.get("aria-label") or "") > 20 for picture in pictures)


def test_the_verdict_comes_first_and_the_parts_in_their_order(page: str) -> None:
    order = [
        "Failed: five kernels.", "Where it is wrong", "The batch", "How far off", "The smallest case elsewhere",
        "What shrinking took away", "See it again", "kernelpair replay", "Coverage", "Tightness of bounds", "Over commits",
    ]  # fmt: skip
    places = [page.index(text) for text in order]
    assert places == sorted(places)


def test_text_stays_text_and_colours_follow_the_page(page: str) -> None:
    assert "prefers-color-scheme: dark" in page and "width=device-width" in page
    assert "currentColor" in page and ">columns [" in page
    assert "#010203" not in page and "#040506" not in page


def test_ten_groups_stay_below_a_megabyte(results: list[PairResult], shown: tuple[list[Exhibit], int]) -> None:
    twice = [*shown[0], *shown[0]][:10]
    assert len(twice) == 10
    assert len(rendered(ReportPage("kernelpair check", "Failed.", False, [], twice, 10, results)).encode()) < MOST_BYTES


def test_what_is_shown_is_what_the_kernel_does(shown: tuple[list[Exhibit], int]) -> None:
    made = {exhibit.candidate: exhibit for exhibit in shown[0]}
    tail = made["wrong_tail"].found or made["wrong_tail"].small
    assert tail is not None and tail.planes[0].wrong and "column" in tail.planes[0].where
    assert "never written" in _where(made["unwritten"]) and "not finite" in _where(made["nan_output"])
    assert [(other.candidate, other.verdict) for other in made["wrong_tail"].elsewhere] == [("good", "pass"), ("tier9", "skip")]
    beside = made["clobbers_neighbour"].small
    assert beside is not None and sum(strip.trespasses for strip in beside.strips) > 0


def _where(exhibit: Exhibit) -> str:
    assert exhibit.small is not None
    return exhibit.small.planes[0].where


def test_every_kernel_is_shown_before_a_second_group_of_one(results: list[PairResult]) -> None:
    first = results[0].failures[0]
    many = [replace(first, case=f'{{"pair":"toy","v":1,"rows":{rows}}}') for rows in (5, 6)]
    long = replace(first, case='{"pair":"toy","v":1,"rows":7,"width":7}')
    both = [replace(results[0], failures=many), replace(results[1], failures=[long])]
    made, count = exhibits(both, AGAIN, 2)
    assert count == 3
    assert [exhibit.candidate for exhibit in made] == [results[0].candidate, results[1].candidate]


def test_a_kernel_is_named_as_it_was_run() -> None:
    emulated = PairResult("toy", "amx", "pass", cases=1, run_as="trapped")
    assert "<td>amx (trapped)</td>" in rendered(ReportPage("t", "s", True, [], [], 0, [emulated]))


def test_a_case_that_cannot_be_run_again_is_told(results: list[PairResult]) -> None:
    report = replace(results[0].failures[0], case='{"pair":"toy","v":1,"rows":-4}')
    (made,), count = exhibits([replace(results[0], failures=[report])], AGAIN, 10)
    assert count == 1 and "could not be run again" in made.note and made.small is None
    assert "could not be run again" in rendered(ReportPage("t", "s", False, [], [made], 1))


def test_what_failing_cases_share_is_told_once(results: list[PairResult]) -> None:
    report = replace(results[0].failures[0], shared="fails for rows of at least 3")
    made = Exhibit("t", "toy", "bad", [report, report])
    assert rendered(ReportPage("t", "s", False, [], [made], 1)).count("It fails for rows of at least 3.") == 1


def test_markup_in_data_is_text() -> None:
    assert "<b>" not in rendered(ReportPage("t", "<b>loud</b>", False))


def test_an_interrupted_write_leaves_the_old_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "page.html"
    write_page(path, ReportPage("t", "first", True))

    def interrupted(page: ReportPage) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("kernelpair.report.html.rendered", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_page(path, ReportPage("t", "second", True))
    assert "first" in path.read_text() and list(tmp_path.iterdir()) == [path]


@pytest.mark.skipif(not browser(), reason="no browser is installed")
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (1200, True), (500, False)])
def test_a_browser_shows_it(page: str, tmp_path: Path, width: int, dark: bool) -> None:
    import numpy as np
    from PIL import Image

    path, picture = tmp_path / "page.html", tmp_path / "page.png"
    path.write_text(page)
    screenshot(path, picture, width, dark=dark)
    pixels = np.asarray(Image.open(picture).convert("RGB")).astype(int)
    assert pixels.shape[0] > 1000 and pixels.shape[1] == width
    background = pixels[-1, -1].mean()
    assert background < 60 if dark else background > 200
    red = (pixels[..., 0] > 150) & (pixels[..., 1] < 60) & (pixels[..., 2] < 60)
    assert red.sum() > 500  # elements beyond their bound
    assert (pixels[:, -8:] == pixels[-1, -1]).all()  # nothing runs out of the page on its right
