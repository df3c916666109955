"""What a bug script begins and ends with (`bug_script.py`): buffers at guard pages, and comparisons."""

WRONG = "wrong: "  # what a line begins with that the script prints of a fault
HEAD = '''"""{title}

{says}

It ends with status 1, or by the signal of a crash, where the fault shows.
"""

import base64
import ctypes
import mmap
import sys
import zlib

import torch

{load}

torch.set_num_threads({threads})
PAGE = mmap.PAGESIZE
CANARY = b"\\xff"
BUFFERS = []
FAULTS = []


def buffer(nbytes, packed, guard):
    """Bytes as they lay in memory before the call. The page at their end (or start) faults, the rest of theirs is canaries."""
    room = max(1, -(-nbytes // PAGE)) * PAGE
    pages = mmap.mmap(-1, room + 2 * PAGE)
    start = PAGE if guard == "start" else PAGE + room - nbytes
    pages[PAGE : PAGE + room] = CANARY * room
    pages[start : start + nbytes] = zlib.decompress(base64.b85decode(packed))
    for page in (0, PAGE + room):
        ctypes.CDLL(None).mprotect(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(pages)) + page), PAGE, 0)
    BUFFERS.append((pages, start, nbytes))
    return torch.frombuffer(pages, dtype=torch.uint8, offset=start, count=nbytes) if nbytes else torch.empty(0, dtype=torch.uint8)


def bytes_of(tensor):
    """The memory of a tensor that an operator returned."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def view(memory, dtype, sizes, strides, start):
    """A tensor in a buffer; start in bytes."""
    return memory[start:][: (len(memory) - start) // dtype.itemsize * dtype.itemsize].view(dtype).as_strided(sizes, strides)


def wrong(says):
    FAULTS.append(says)
    print("{wrong}" + says)


def expect(name, tensor, index, expected, bound):
    """An element is within its bound of the truth; NaN never is."""
    got = tensor[tuple(index)].item()
    if got != expected and not abs(got - expected) <= bound:
        wrong(f"{{name}}{{index}} is {{got!r}}, expected {{expected!r}} within {{bound:.3g}}")


def expect_unchanged(name, memory, packed, free):
    """Every byte is as it was, but for those that the contract lets the call write (bits of `free`)."""
    before, may = (zlib.decompress(base64.b85decode(text)) for text in (packed, free))
    now = memory.numpy().tobytes()
    changed = [i for i in range(len(now)) if now[i] != before[i] and not may[i]]
    if changed:
        wrong(f"{{name}}: {{len(changed)}} bytes changed that must not, the first at {{changed[0]}} of {{len(now)}}")


def expect_canaries():
    """Nothing was written around the buffers."""
    for number, (pages, start, nbytes) in enumerate(BUFFERS):
        around = pages[PAGE:start] + pages[start + nbytes : len(pages) - PAGE]
        if around.strip(CANARY):
            wrong(f"bytes beside buffer {{number}} changed")


'''
FOOT = """
expect_canaries()
sys.exit(1 if FAULTS else 0)"""
