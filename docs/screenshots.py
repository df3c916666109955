"""The pictures of the documentation: `make screenshots`. Plants the bugs of the gallery, finds them, and photographs their pages.

python docs/screenshots.py gallery            docs/gallery/<kind>.png, one for each planted bug
python docs/screenshots.py blind FOLDER       the same under numbers in a random order, with the answers in FOLDER/key.json
python docs/screenshots.py pages FOLDER       of pages that are there: FOLDER/*.html, each light, dark and narrow
python docs/screenshots.py runs [NAME...]     docs/runs/<name>.png: two kernels that fail, a clean run, a campaign (needs Ray)
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from kernelpair.call.runner import Isolated
from kernelpair.contract.subject import Subject
from kernelpair.mutation.candidate import MutantSubjects
from kernelpair.report import words
from kernelpair.report.browser import screenshot
from kernelpair.report.exhibit import Again, exhibits
from kernelpair.report.html import ReportPage, write_page
from kernelpair.report.lines import PairResult, result_of
from kernelpair.search.jobs import Ended, Job
from kernelpair.search.search import Search
from kernelpair.suite import Suite, find

FOLDER = Path(__file__).resolve().parent / "gallery"
GALLERY = {  # the name of its picture -> the planted bug
    "tail": "causal_conv1d/partial-block-skipped",
    "stride": "decode_attention/out-dense",
    "index": "decode_attention/kv-head-modulo",
    "mask": "extend_attention/mask-column-short",
    "split": "decode_attention/merge-unscaled",
    "pad": "gated_delta_rule_update/pad-not-zeroed",
    "isolation": "extend_attention/stale-values",
    "bounds": "decode_attention/value-tail-over-read",
    "precision": "decode_attention/bf16-accumulator",
    "state": "decode_attention/only-k-written",
}
FIRST, TOP = "tail", 1000  # the picture in the README: so many pixels of this one
TWO = ("causal_conv1d/partial-block-skipped", "extend_attention/mask-column-short")
CLEAN = ("check", "store_cache", "causal_conv1d", "merge_state", "--seed", "1", "--examples", "400")
HEIGHTS = {"failing": 4400, "clean": 1400, "campaign": 1400}  # of the picture, in pixels: its first screens
SECONDS = 120.0
SEED = 5
WIDTH = 1100


def tried(mutant: str, folder: Path) -> tuple[Suite, Subject, PairResult]:
    """Plant the bug, and search until it is found."""
    place = find()
    suite = place.load()
    subject = MutantSubjects(place, str(folder))(mutant.partition("/")[0], mutant)
    with Isolated(subject.candidate, preload=suite.preload) as runner:
        search = Search(subject, runner)
        search.run(None, SECONDS, SEED, None)
    return suite, subject, result_of(Ended(Job(subject.pair.name, subject.candidate.name), search.tally), subject.pair)


def page_of(mutant: str, folder: Path) -> ReportPage:
    """Draw what was found."""
    suite, subject, result = tried(mutant, folder)
    again = Again(lambda pair, candidate: subject, suite.preload)
    shown, groups = exhibits([result], again, 2)
    first = result.failures[0]
    says = f"{subject.pair.name}[{subject.candidate.name}] {first.kind}: {first.detail}"
    return ReportPage("kernelpair check", says, False, [], shown, groups)


def failing(page: Path) -> None:
    """The page of two kernels that fail."""
    with tempfile.TemporaryDirectory() as build:
        found = [tried(mutant, Path(build)) for mutant in TWO]
        subjects = {subject.pair.name: subject for _, subject, _ in found}
        results = [result for _, _, result in found]
        shown, groups = exhibits(results, Again(lambda pair, candidate: subjects[pair], found[0][0].preload), len(TWO))
    steps = words.next_steps(results, str(page))
    write_page(page, ReportPage("kernelpair check", words.proven(results), False, [], shown, groups, results, next_steps=steps))


def ran(page: Path, *command: str) -> None:
    """A command of this environment that writes the page, in a folder without files of earlier runs."""
    quiet = {**os.environ, "KERNELPAIR_HISTORY": "0", "KERNELPAIR_SUITE": "properties.suite"}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "kernels").mkdir()
        made = [sys.executable, *command, "--html", str(page)]
        ended = subprocess.run(made, cwd=Path(folder, "kernels"), env=quiet, check=False)
    if not page.is_file():  # a run that fails has one too
        raise RuntimeError(f"{command[0]} wrote no page; its exit status is {ended.returncode}")


def runs(folder: Path, names: Sequence[str]) -> None:
    """Pictures of whole runs, each as a command writes its page."""
    folder.mkdir(exist_ok=True)
    commands = {"clean": ("-m", "kernelpair", *CLEAN), "campaign": (str(FOLDER.parent / "three_nodes.py"),)}
    for name in names or ("failing", *commands):
        page = folder.resolve() / f"{name}.html"
        if name == "failing":
            failing(page)
        else:
            ran(page, *commands[name])
        screenshot(page, page.with_suffix(".png"), WIDTH, HEIGHTS[name])
        page.unlink()
        print(f"wrote {page.with_suffix('.png')}", flush=True)


def main(what: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if what == "pages":
        for page in sorted(folder.glob("*.html")):
            screenshot(page, page.with_suffix(".png"), WIDTH)
            screenshot(page, page.with_name(f"{page.stem}-dark.png"), WIDTH, dark=True)
            screenshot(page, page.with_name(f"{page.stem}-narrow.png"), 1)
        return
    names = list(GALLERY)
    if what == "blind":
        random.SystemRandom().shuffle(names)
        (folder / "key.json").write_text(json.dumps(names))
    for number, name in enumerate(names, 1):
        with tempfile.TemporaryDirectory() as build:
            page = page_of(GALLERY[name], Path(build))
        path = folder / f"{number if what == 'blind' else name}.html"
        write_page(path, page)
        screenshot(path, path.with_suffix(".png"), WIDTH)
        if what == "gallery" and name == FIRST:
            screenshot(path, folder / "first.png", WIDTH, TOP)
        print(f"wrote {path.with_suffix('.png') if what != 'blind' else number}", flush=True)
        if what == "gallery":
            path.unlink()


if __name__ == "__main__":
    if sys.argv[1] == "runs":
        runs(FOLDER.parent / "runs", sys.argv[2:])
        sys.exit()
    main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
