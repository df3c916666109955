"""`kernelpair new-pair NAME`: the files of a pair that runs and fails until it is filled in."""

import argparse
import keyword
from importlib.resources import files
from pathlib import Path
from string import Template

from kernelpair.cli.main import EXIT_OK, UsageError
from kernelpair.suite import FILE, Place, Places, Suite, SuiteError, find

SKELETON = files("kernelpair") / "skeleton"
ROOM = ("__init__.py", "cases.py", "bound.py", "relations.py", "wrong_calls.py", "bench.py", "mutants.toml")


def new_pair(options: argparse.Namespace) -> int:
    """Write the files and say what to fill in. UsageError where the name is no name, or something of it exists already."""
    name = options.name
    if not name.isidentifier() or name != name.lower() or name.startswith("_") or keyword.iskeyword(name):
        raise UsageError(f"NAME must be a Python name in lower case, such as row_scale, got {name!r}")
    place, written, hidden = _place(options)
    suite = _suite_of(place, written)
    if name in suite.pairs():
        raise UsageError(f"NAME: the suite {place.module} has a pair {name!r} already")
    if suite.places is None:
        raise UsageError(
            f"the suite {place.module} does not find pairs by their folders: give it the class kernelpair.rooms.RoomSuite, or "
            f"run this in a folder of its own"
        )
    written |= _filled(name, suite.root, suite.places)
    existing = [str(path) for path in written if path.exists()]
    if existing:
        raise UsageError(f"NAME: {name!r} would overwrite {', '.join(existing)}")
    for path, text in written.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    _say(name, suite.root, suite.places, list(written))
    if hidden:
        print(f"from here on, commands in this folder know its own pairs alone; those that are installed: --suite {hidden}")
    return EXIT_OK


def _place(options: argparse.Namespace) -> tuple[Place, dict[Path, str], str]:
    """The suite that is meant, the file of a new one where there is none in a folder, and the installed suite that the new one
    hides: nothing is written to what is installed."""
    try:
        place = find(options.suite)
    except SuiteError as error:
        if options.suite:
            raise UsageError(str(error)) from None
        place = Place("")
    if place.folder or options.suite:
        return place, {}, ""
    here = Path.cwd()
    return Place(Path(FILE).stem, folder=str(here)), {here / FILE: (SKELETON / f"{FILE}.txt").read_text()}, place.module


def _suite_of(place: Place, written: dict[Path, str]) -> Suite:
    if written:
        from kernelpair.rooms import RoomSuite

        return RoomSuite(Path(place.folder))
    try:
        return place.load()
    except SuiteError as error:
        raise UsageError(str(error)) from None


def _filled(name: str, root: Path, places: Places) -> dict[Path, str]:
    """Path -> text of every file of the pair."""
    room, reference, kernel = (each.format(name=name) for each in (places.room, places.reference, places.kernel))
    words = {"name": name, "case": "".join(part.capitalize() for part in name.split("_")) + "Case", "room": room}
    for role, file in (("room", room), ("reference", reference), ("kernel", kernel)):
        words |= {f"{role}_file": file, f"{role}_module": file.removesuffix(".py").replace("/", ".")}
    texts = {f"{room}/{file}": file for file in ROOM} | {reference: "pytorch.py", kernel: "kernel.py"}
    made = {root / path: Template((SKELETON / f"{file}.txt").read_text()).substitute(words) for path, file in texts.items()}
    package = (root / room).parent / "__init__.py"  # a package of this name that is installed would come first otherwise
    return made if package.exists() else made | {package: '"""Pairs, a room each."""\n'}


def _say(name: str, root: Path, places: Places, written: list[Path]) -> None:
    for path in written:
        print(f"wrote {path.relative_to(root)}")
    print(
        f"fill in {name}() in {places.reference.format(name=name)}: what it computes, in plain PyTorch\n"
        f"        {name}() in {places.kernel.format(name=name)}: the kernel\n"
        f"        bound() in {places.room.format(name=name)}/bound.py: how far a result may be from the truth\n"
        f"then    kernelpair check {name}"
    )
