"""Mounts that one process sees, and what it starts: file systems that are full, small or read-only."""

import ctypes
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

CLONE_NEWNS, CLONE_NEWUSER = 1 << 17, 1 << 28
MS_RDONLY, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 1, 1 << 5, 1 << 12, 1 << 14, 1 << 18
MS_KEPT = 2 | 4 | 8  # nosuid, nodev, noexec: what an ordinary user may not take away; statvfs has the same bits
SMALL = 1 << 16  # bytes

_libc = ctypes.CDLL(None, use_errno=True)


def of_its_own() -> None:
    """What this process mounts from now on nobody else sees. Raises OSError where the system does not allow it."""
    user, group = os.getuid(), os.getgid()
    if _libc.unshare(CLONE_NEWNS | (CLONE_NEWUSER if user else 0)):
        _fail("unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1")
    _mount(None, "/", None, MS_REC | MS_PRIVATE)


def small(place: Path) -> None:
    """An empty file system of SMALL bytes."""
    of_its_own()
    _mount("none", str(place), "tmpfs", 0, f"size={SMALL}")


def full(place: Path) -> None:
    """A small one, with a folder `tmp` and no room for a byte; this process then stands in it."""
    small(place)
    os.chdir(place)
    os.mkdir("tmp")
    with open("filling", "wb", buffering=0) as filling:
        try:
            while filling.write(bytes(SMALL)):
                pass
        except OSError:
            return


def read_only(place: Path) -> None:
    """What is in the folder stays there, and cannot be written."""
    of_its_own()
    _mount(str(place), str(place), None, MS_BIND | MS_REC)
    _mount(None, str(place), None, MS_REMOUNT | MS_BIND | MS_RDONLY | os.statvfs(place).f_flag & MS_KEPT)
    os.chdir(place)


@cache
def refused() -> str:
    """Why no process can have mounts of its own here; empty if one can."""
    tried = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import of_its_own; of_its_own()"],
        cwd=Path(__file__).parents[1], capture_output=True, text=True, check=False,
    )
    return tried.stderr.strip().rpartition("\n")[2]


def _mount(source: str | None, place: str, kind: str | None, flags: int, options: str | None = None) -> None:
    given = [None if text is None else text.encode() for text in (source, place, kind, options)]
    if _libc.mount(*given[:3], ctypes.c_ulong(flags), given[3]):
        _fail(f"mount {place}")


def _fail(what: str) -> None:
    error = ctypes.get_errno()
    raise OSError(error, f"{what}: {os.strerror(error)}")
