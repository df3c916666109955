"""What the arguments of several commands are made of: options of one meaning, types of values, and the parser's own words."""

import argparse
import re
from typing import Any, NoReturn

from kernelpair.names import unknown

Commands = Any
"""What argparse gives for adding commands; its class is private."""


class _Help(argparse.HelpFormatter):
    """Fills a paragraph, and keeps the lines of examples, which somebody copies, and of any text that has several."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines(keepends=True)
        kept = len(lines) > 1 or text.startswith("example: ")
        return "".join(indent + line for line in lines) if kept else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """One that names the command or the option which was probably meant, in the words of the command."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=_Help, **settings)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        found, rest = super().parse_known_args(args, namespace)
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        options = [name for action in shown for name in action.option_strings if name.startswith("--")]
        for name in (name.partition("=")[0] for name in rest if name.startswith("-")):
            self.error(unknown("option", name, options))
        return found, rest

    def error(self, message: str) -> NoReturn:
        found = re.match(r"argument COMMAND: invalid choice: '(.*?)' \(choose from (.*)\)", message)
        super().error(unknown("command", found[1], found[2].replace("'", "").split(", ")) if found else message)


def positive(text: str) -> int:
    """A whole number above 0."""
    value = int(text) if re.fullmatch(r"\s*[+-]?\d+\s*", text) else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number, 1 or more, got {text}")
    return value


def above_0(text: str) -> float:
    """A time."""
    if not 0 < (value := _number(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number above 0, got {text}")
    return value


def many(text: str) -> float:
    """A number of cases, which may be written as 1e8."""
    if not 1 <= (value := _number(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of cases, such as 1e8, got {text}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


class Once(argparse.Action):
    """An option that says what is on trial: a second one would replace the first without a word."""

    def __call__(self, parser: Any, given: argparse.Namespace, value: Any, option: str | None = None) -> None:
        if (before := getattr(given, self.dest)) is not None:
            raise argparse.ArgumentError(self, f"given twice, as {before} and {value}; one run takes one")
        setattr(given, self.dest, value)


def add_pairs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pairs", nargs="*", metavar="PAIR", help="names from `kernelpair list`; all of them if none is given")


def add_tiers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tier", action="append", default=[], metavar="T", help="only this tier (may be repeated); an error if the CPU lacks it"
    )


def add_provider(parser: argparse.ArgumentParser) -> None:
    says = "somebody else's kernels instead of ours: an installed provider's name, or its file .py"
    parser.add_argument("--provider", metavar="P", action=Once, help=says)


def add_cpu(parser: argparse.ArgumentParser) -> None:
    says = "with --provider: show the kernels' process this CPU, such as amx; an error where that is not possible"
    parser.add_argument("--cpu", metavar="C", help=says)


def add_html(parser: argparse.ArgumentParser, what: str = "with pictures of every failure") -> None:
    says = f"write a page {what} to this file (needs pip install 'kernelpair[report]')"
    parser.add_argument("--html", metavar="F", help=says)


def add_json(parser: argparse.ArgumentParser, what: str = "results") -> None:
    parser.add_argument("--json", metavar="F", help=f"write {what} to this file as JSON")


def add_junit(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--junit", metavar="F", help="write results to this file as JUnit XML")


def add_seed(parser: argparse.ArgumentParser) -> None:
    says = "seed for drawing cases (default: a new one, which is printed)"
    parser.add_argument("--seed", type=int, metavar="N", help=says)


def add_suite(parser: argparse.ArgumentParser, default: str | None) -> None:
    says = "the suite to work on (default: that of the current folder, else an installed one)"
    parser.add_argument("--suite", metavar="MODULE[:ATTRIBUTE]", default=default, help=says)
