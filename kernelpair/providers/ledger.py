"""The ledger of known failures: a TOML file with which CI passes while only known failures occur, and says when one no longer
occurs.

    [[known]]
    group = "value out: window cuts"       # as `kernelpair check` prints it
    case = '{"pair":"extend_attention","v":1,...}'
    reason = "rows outside of the window keep the last block's weights"
    ratio = 5.0                            # optional: known up to this ratio of error and bound; what is worse is new
    link = "https://..."                   # optional
"""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path

from kernelpair.contract.case import CaseError, pair_of_line


class LedgerError(ValueError):
    """The file is no ledger; the message says where and why."""


@dataclass(frozen=True)
class Known:
    """One known failure."""

    group: str
    case: str
    reason: str
    link: str = ""
    ratio: float | None = None

    @property
    def pair(self) -> str:
        return pair_of_line(self.case)[0]


def ledger(path: Path) -> tuple[Known, ...]:
    """The entries of a file. Raises LedgerError."""
    try:
        document = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise LedgerError(f"{path}: {error}") from None
    entries = document.pop("known", [])
    if document or not isinstance(entries, list):
        raise LedgerError(f"{path}: expected [[known]] tables alone, got {', '.join(document) or 'known'}")
    found: dict[tuple[str, str], Known] = {}
    for number, entry in enumerate(entries, 1):
        known = _entry(path, number, entry)
        if (known.pair, known.group) in found:
            raise LedgerError(f"{path}: entry {number}: the group {known.group!r} of {known.pair} has an entry above")
        found[known.pair, known.group] = known
    return tuple(found.values())


def _entry(path: Path, number: int, entry: object) -> Known:
    names = [spec.name for spec in fields(Known)]
    texts = [name for name in names if name != "ratio"]
    if not isinstance(entry, dict) or not set(entry) <= set(names) or not all(isinstance(entry.get(n, ""), str) for n in texts):
        raise LedgerError(f"{path}: entry {number} must have texts named {', '.join(texts)}, and may have a number ratio")
    ratio = entry.get("ratio", 1.0)
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not ratio >= 1.0:
        raise LedgerError(f"{path}: entry {number}: ratio must be a number of at least 1, got {ratio!r}")
    missing = [name for name in ("group", "case", "reason") if not entry.get(name)]
    if missing:
        raise LedgerError(f"{path}: entry {number} lacks {', '.join(missing)}")
    try:
        known = Known(**entry)
        known.pair  # noqa: B018 - the case must name one
    except CaseError as error:
        raise LedgerError(f"{path}: entry {number}: case: {error}") from None
    return known
