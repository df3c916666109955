"""`make check` in a checkout that has no library yet: the first tiers are put on trial before the others are compiled.

Exit status as of `kernelpair check`: 1 where either part found something; nothing follows a part that could not be carried out.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "release"
FIRST = BUILD / "first" / "_kernels.so"
JUDGED = (0, 1)
RUNNABLE = "import optimized; print(*(tier.name for tier in optimized.tiers() if tier.runnable or tier.run_as))"


def main() -> int:
    """Both parts, one after the other."""
    say("compiling the first tiers")
    if status := run(["flock", str(BUILD / "lock"), tool("cmake"), "--build", str(BUILD), "--target", "first"]):
        return status
    ready = runnable(FIRST)
    say(f"checking {' and '.join(ready)}; the other tiers are compiled afterwards")
    first = checked(ready, FIRST)
    if first not in JUDGED:
        return first
    say("compiling the other tiers")
    if status := run(["make", "--no-print-directory", "-C", str(ROOT), "build"]):
        return status
    others = [tier for tier in runnable() if tier not in ready]
    if not others:
        say("no other tier is to be tried here")
        return first
    say(f"now the others: {', '.join(others)}")
    second = checked(others)
    return max(first, second) if second in JUDGED else second


def runnable(library: Path | None = None) -> list[str]:
    """The tiers of a library that can be put on trial here."""
    return subprocess.run(
        [sys.executable, "-P", "-c", RUNNABLE], env=environment(library), stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()


def checked(tiers: Sequence[str], library: Path | None = None) -> int:
    """The status of a check of these tiers alone."""
    return run([tool("kernelpair"), "check", *(f"--tier={tier}" for tier in tiers)], environment(library))


def environment(library: Path | None) -> dict[str, str]:
    """The present one, with a library in the place of the ordinary one."""
    return {**os.environ, **({"KERNELPAIR_LIBRARY": str(library)} if library else {})}


def run(command: Sequence[str], env: dict[str, str] | None = None) -> int:
    """The exit status of a command, to which the answer to a signal is left: a terminal's Ctrl-C reaches it as well."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with subprocess.Popen(command, env=env) as process:
            signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            status = process.wait()
    finally:
        signal.signal(signal.SIGINT, before)
    return status if status >= 0 else 128 - status


def tool(name: str) -> str:
    return str(Path(sys.executable).parent / name)


def say(what: str) -> None:
    print(what, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
