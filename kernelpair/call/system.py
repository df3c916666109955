"""What Python's standard library does not say about processes on Linux."""

import ctypes
import os
import re
import resource
import struct
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGKILL, Signals
from socket import SO_RCVTIMEO, SOL_SOCKET, socket
from typing import NamedTuple

BEGINNING, END = 3000, 1000  # characters of a long message that are told
CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Characters that move the cursor, end a line or turn the text behind them round."""
PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36

_libc = ctypes.CDLL(None, use_errno=True)


class Standing(NamedTuple):
    """From where a process sees files and modules."""

    folder: str
    path: list[str]


def here() -> Standing:
    """Where this process stands."""
    return Standing(os.getcwd(), [entry or os.getcwd() for entry in sys.path])


def stand(standing: Standing) -> None:
    """Stand where the asking process does: the server that forked this one may have begun elsewhere, or with fewer modules."""
    os.chdir(standing.folder)
    sys.path[:] = standing.path


def die_with(parent: int) -> None:
    """This process is killed when `parent`, which forked it, is gone."""
    _control(PR_SET_PDEATHSIG, SIGKILL)
    if os.getppid() != parent:  # it went before the line above
        os._exit(1)


def inherit_orphans() -> None:
    """Processes below this one whose parent ends become its children, however they were started."""
    _control(PR_SET_CHILD_SUBREAPER, 1)


def be_called(name: str) -> None:
    """The name of this process where processes are listed; the system keeps 15 letters."""
    _control(PR_SET_NAME, ctypes.c_char_p(name.encode()))


def _control(option: int, value: int | ctypes.c_char_p) -> None:
    if _libc.prctl(option, value if isinstance(value, ctypes.c_char_p) else ctypes.c_ulong(value), 0, 0, 0):
        error = ctypes.get_errno()
        raise OSError(error, f"prctl({option}): {os.strerror(error)}")


def limit_memory() -> None:
    """Let this process hold half of the machine's memory at most: what makes a judge take more is then an error that names its
    case, and the machine lives."""
    most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    known = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([most, *known]), hard))


@contextmanager
def limited_memory() -> Iterator[None]:
    """In the block this process has that limit."""
    before = resource.getrlimit(resource.RLIMIT_DATA)
    limit_memory()
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, before)


def give_up_reading(descriptor: int, seconds: float) -> None:
    """A read from this socket raises BlockingIOError where nothing comes for so long."""
    whole, part = divmod(seconds, 1)
    with socket(fileno=os.dup(descriptor)) as same:
        same.setsockopt(SOL_SOCKET, SO_RCVTIMEO, struct.pack("@ll", int(whole), int(part * 1e6)))


def told(path: str) -> bytes:
    """The content of a file of /proc; in a process that has just woken this takes a third of the time that `Path` takes."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 4096)
    finally:
        os.close(descriptor)


def waited_for_processor(pid: int) -> float:
    """Seconds in which a process could have run but had no processor: those of its thread that waited longest. 0 where the
    system does not tell."""
    waited = [0]
    with suppress(OSError, IndexError):  # it has ended, or the system keeps no account
        for task in os.listdir(f"/proc/{pid}/task"):
            waited.append(int(told(f"/proc/{pid}/task/{task}/schedstat").split()[1]))
    return max(waited) / 1e9


def waited_for_memory() -> float:
    """Seconds in which some process of this machine waited for memory, as it does where it swaps. 0 where the system does not
    tell."""
    with suppress(OSError, IndexError, ValueError):
        return int(told("/proc/pressure/memory").split()[4].removeprefix(b"total=")) / 1e6
    return 0.0


def lets_start(threads: int) -> bool:
    """Whether the system lets a process start so many threads now: its user, or a container, may have a limit."""
    over, started = threading.Event(), []
    try:
        for _ in range(threads):
            each = threading.Thread(target=over.wait, daemon=True)
            each.start()
            started.append(each)
        return True
    except RuntimeError:
        return False
    finally:
        over.set()
        for each in started:
            each.join()


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger holds a process."""
    with suppress(OSError):  # it has ended
        return told(f"/proc/{pid}/stat").rpartition(b")")[2].split()[0] in (b"T", b"t")
    return False


def children(pid: int | str = "self") -> set[int]:
    """The processes whose parent is this one, whichever of its threads forked them; zombies too."""
    found: set[int] = set()
    with suppress(OSError):  # the process has ended
        for task in os.listdir(f"/proc/{pid}/task"):
            with suppress(OSError):  # the thread has ended
                found.update(map(int, Path(f"/proc/{pid}/task", task, "children").read_text().split()))
    return found


def below(pid: int) -> Iterator[int]:
    """The processes that it has started, and those that these have."""
    waiting = [pid]
    while waiting:
        for child in sorted(children(waiting.pop())):
            waiting.append(child)
            yield child


def names_below(pid: int) -> list[str]:
    """The names of these processes."""
    names = []
    for child in below(pid):
        with suppress(OSError):  # it has ended
            names.append(told(f"/proc/{child}/comm").decode().strip())
    return list(dict.fromkeys(names))


def kill_children(but: Collection[int] = ()) -> None:
    """Kill every child but these, and what they leave behind. Orphans come to this process only if it inherits them."""
    while strays := children().difference(but):
        for pid in strays:
            with suppress(ProcessLookupError):
                os.kill(pid, SIGKILL)
        for pid in strays:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)


def signal_name(number: int) -> str:
    """Its name; real-time signals have none."""
    return Signals(number).name if number in Signals._value2member_map_ else f"signal {number}"


def printable(text: str) -> str:
    """Without what no file in UTF-8 can hold, such as a part of a file's name that is no text, and what a terminal obeys."""
    shown = CONTROLS.sub(lambda found: f"\\x{ord(found[0]):02x}" if found[0] < "\u0100" else f"\\u{ord(found[0]):04x}", text)
    return shown.encode("utf-8", "backslashreplace").decode()


def shortened(text: str) -> str:
    """Beginning and end of a message that nobody would read to its end."""
    begin, end = text[:BEGINNING], text[-END:]
    return text if len(text) <= BEGINNING + END else f"{begin} … ({len(text):,} characters) … {end}"


def words_of(error: BaseException) -> str:
    """What an exception says, in words that can be printed, where only the first begins a line; also where it cannot say
    anything."""
    try:
        return printable(shortened(str.__str__(str(error)))).replace("\n", "\n    ")
    except Exception as other:  # noqa: BLE001 - it has its words from code of its own
        return f"(its message cannot be read, which raises {type(other).__name__})"
