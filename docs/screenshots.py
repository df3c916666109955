"""The pictures of the documentation: `make screenshots`. Plants the bugs of the gallery, finds them, and photographs their pages.

    python docs/screenshots.py gallery            docs/gallery/<kind>.png, one for each planted bug
    python docs/screenshots.py blind FOLDER       the same under numbers in a random order, with the answers in FOLDER/key.json
    python docs/screenshots.py pages FOLDER       of pages that are there: FOLDER/*.html, each light, dark and narrow
"""

import json
import random
import sys
import tempfile
from pathlib import Path

from kernelpair.call.runner import Isolated
from kernelpair.mutation.candidate import MutantSubjects
from kernelpair.report.browser import screenshot
from kernelpair.report.exhibit import Again, exhibits
from kernelpair.report.html import ReportPage, write_page
from kernelpair.report.lines import result_of
from kernelpair.search.jobs import Ended, Job
from kernelpair.search.search import Search
from kernelpair.suite import find

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
SECONDS = 120.0
SEED = 5
WIDTH = 1100


def page_of(mutant: str, folder: Path) -> ReportPage:
    """Plant the bug, search until it is found, and draw what was found."""
    place = find()
    suite = place.load()
    resolve = MutantSubjects(place, str(folder))
    subject = resolve(mutant.partition("/")[0], mutant)
    name = subject.candidate.name
    with Isolated(subject.candidate, preload=suite.preload) as runner:
        search = Search(subject, runner)
        search.run(None, SECONDS, SEED, None)
    result = result_of(Ended(Job(subject.pair.name, name), search.tally), subject.pair)
    again = Again(lambda pair, candidate: subject, suite.preload)
    shown, groups = exhibits([result], again, 2)
    first = result.failures[0]
    says = f"{subject.pair.name}[{name}] {first.kind}: {first.detail}"
    return ReportPage("kernelpair check", says, False, [], shown, groups)


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
    main(sys.argv[1], Path(sys.argv[2]) if len(sys.argv) > 2 else FOLDER)
