"""What a process holds in memory, and what each of several equal calls makes it keep."""

import ctypes
import resource
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise

from kernelpair.call import torch_memory
from kernelpair.call.system import told

LEAST_LEAK = 4096  # bytes by which every one of several equal calls must grow the heap to be called a leak;
LEAST_OF_MANY = 16  # and those by which calls of a long series must: the C library takes 32 for the smallest piece

_libc = ctypes.CDLL(None)


class _Heap(ctypes.Structure):
    """`struct mallinfo2` of glibc."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    )


@cache
def _mallinfo() -> Callable[[], _Heap] | None:
    """None with a C library that has no such function."""
    function = getattr(_libc, "mallinfo2", None)
    if function is not None:
        function.restype = _Heap
    return function


@cache
def _sanitizer() -> tuple[Callable[[], int], Callable[[], int]] | None:
    """How many bytes are allocated and not freed, and how many its allocator has mapped; None without AddressSanitizer."""
    allocated = getattr(_libc, "__sanitizer_get_current_allocated_bytes", None)
    mapped = getattr(_libc, "__sanitizer_get_heap_size", None)
    if allocated is None or mapped is None:
        return None
    allocated.restype = mapped.restype = ctypes.c_size_t
    return allocated, mapped


def held_bytes() -> tuple[int, int]:
    """What this process holds: bytes that are allocated and not freed, and those mapped beside what the allocator has mapped.

    It keeps what was freed, and may take more for some equal calls before it finds room. Zeros where the C library does not
    tell. AddressSanitizer's allocator, which holds back what was freed, says both itself.
    """
    pages = int(told("/proc/self/statm").split()[0])
    sanitizer = _sanitizer()
    if sanitizer is not None:
        allocated, mapped = sanitizer
        return int(allocated()), pages * resource.getpagesize() - int(mapped())
    heap = _mallinfo()
    found = heap() if heap is not None else None
    if found is None:
        return 0, 0
    torchs = torch_memory.held()
    own = int(found.arena + found.hblkhd) + torchs[1]
    return int(found.uordblks + found.hblkhd) + torchs[0], pages * resource.getpagesize() - own


def kept_by_each(held: Sequence[tuple[int, int]]) -> int:
    """By how many bytes at least each step made grow what is held, of one kind or of the other; `held_bytes` of each step."""
    return max(min(after[kind] - before[kind] for before, after in pairwise(held)) for kind in range(len(held[0])))
