"""What a person sees, kept as text in tests/cli/screens: compared with what is there, or written anew with SCREENS=write.

Rates, times and what else differs from run to run are masked before.
"""

import difflib
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from fcntl import ioctl
from pathlib import Path

import pyte

from tests.processes import heed_signals

ROOT = Path(__file__).resolve().parent.parent
KEPT = ROOT / "tests" / "cli" / "screens"
HABITS = (
    "CI", "MAKEFLAGS", "MAKELEVEL", "MFLAGS", "COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE",
)  # fmt: skip
COLUMNS, LINES = 80, 50
READ = 65536
SECONDS = 300.0  # without a word; on a machine with much else to do
MASKS = (
    (r"(?<= cases) +\d+/s", lambda found: "…/s".rjust(len(found[0]))),  # the line of a trial
    (r" in \d+(\.\d+)? s\b", lambda found: " in … s"),
    (r"^(\w+ .*?) +[\d,]+ of (\d+) +[\d,]+/s$", lambda found: f"{found[1]} … of {found[2]} …/s"),  # a row of the live table
    (r"· [\d,]+ cases · [\d,]+/s", lambda found: "· … cases · …/s"),
    (r"\d+:\d\d left", lambda found: "…:… left"),
)


def masked(text: str) -> str:
    """The text without what differs from run to run, and without spaces at the ends of lines."""
    text = "\n".join(line.rstrip() for line in text.splitlines()).strip("\n") + "\n"
    for pattern, put in MASKS:
        text = re.sub(pattern, put, text, flags=re.MULTILINE)
    return text


def assert_as_kept(name: str, seen: str) -> None:
    """Compare with the text of this name, or keep it under SCREENS=write."""
    path, text = KEPT / f"{name}.txt", masked(seen)
    if os.environ.get("SCREENS") == "write":
        path.write_text(text)
    assert path.is_file(), f"{path} is missing: SCREENS=write writes it"
    kept = path.read_text()
    differs = "".join(difflib.unified_diff(kept.splitlines(True), text.splitlines(True), "kept", "seen", n=1))
    assert text == kept, f"{path} has another text; SCREENS=write writes what is seen now\n{differs}"


def usual_environment(**more: str) -> dict[str, str]:
    """The variables of this process without those that change what is shown; commands of this environment come first."""
    clean = {name: value for name, value in os.environ.items() if name not in HABITS and not name.startswith("KERNELPAIR")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    return clean | {"PATH": path, "KERNELPAIR_HISTORY": "0"} | more


def on_a_terminal(
    command: Sequence[str],
    folder: Path,
    environment: Mapping[str, str],
    before: Callable[[], object],
    moment: Callable[[str], bool],
) -> tuple[int, bytes, str, str]:
    """Run on a terminal of 80 columns: the status, every byte, what stands there at the end, and the first screen in which
    `moment` holds, or nothing."""
    leader, follower = pty.openpty()
    ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
    with subprocess.Popen(
        command, cwd=folder, env={**environment, "TERM": "xterm-256color"}, stdin=follower, stdout=follower, stderr=follower,
        start_new_session=True, preexec_fn=before,
    ) as running:  # fmt: skip
        os.close(follower)
        screen = pyte.Screen(COLUMNS, LINES)
        stream, every, caught = pyte.ByteStream(screen), b"", ""
        try:
            while select.select([leader], [], [], SECONDS)[0] and (read := _read(leader)):
                every += read
                stream.feed(read)
                shown = _shown(screen)
                caught = caught or (shown if moment(shown) else "")
            status = running.wait(SECONDS)
        finally:
            running.kill()  # nothing, where it has ended
            os.close(leader)
    return status, every, _shown(screen), caught


def _read(leader: int) -> bytes:
    try:
        return os.read(leader, READ)
    except OSError:  # EIO: nobody has the other end any more
        return b""


def _shown(screen: pyte.Screen) -> str:
    return "\n".join(line.rstrip() for line in screen.display).strip("\n")


def walked(commands: Sequence[str], folder: Path, environment: Mapping[str, str]) -> str:
    """What a shell in this folder shows of the commands, one after another, with the exit statuses that are not 0."""
    seen = []
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command], cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=SECONDS, preexec_fn=heed_signals, check=False,
        )  # fmt: skip
        status = [f"[exit status {done.returncode}]"] if done.returncode else []
        seen += [f"$ {command}", done.stdout.rstrip("\n"), *status]
    return "\n".join(part for part in seen if part).replace(str(folder), "FOLDER")
