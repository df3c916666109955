"""A case as a script that needs only torch and the kernel's library: to attach to somebody else's bug report.

The case is built and its adapter called here, while every call of an operator that is not torch's own is written down with the
bytes of its tensors. The file is complete before each call, so that it says what a call does that never comes back.
"""

import base64
import ctypes
import os
import zlib
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelpair.call.layout import reach
from kernelpair.call.memory import Placed
from kernelpair.call.place import place, settle
from kernelpair.call.runner import InProcess
from kernelpair.call.worker import named_results
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.pair import Pair
from kernelpair.contract.verdict import Verdict

OURS = ("aten", "prim", "prims", "_c10d_functional")
HEAD = '''"""{title}

{says}
"""

import base64
import zlib

import torch

{load}


def buffer(nbytes, packed):
    """Bytes as they lay in memory before the call."""
    return torch.frombuffer(bytearray(zlib.decompress(base64.b85decode(packed))), dtype=torch.uint8)[:nbytes]


def bytes_of(tensor):
    """The memory of a tensor that an operator returned."""
    return torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())


def view(memory, dtype, sizes, strides, start):
    """A tensor in a buffer; start in bytes."""
    return memory[start:][: (len(memory) - start) // dtype.itemsize * dtype.itemsize].view(dtype).as_strided(sizes, strides)


'''


@dataclass
class _Memory:
    """A stretch of memory that the script has under a name."""

    name: str
    first: int
    last: int
    content: bytes = b""


@dataclass
class _Writer:
    """The lines of the script, and which memory they know."""

    path: Path
    lines: list[str] = field(default_factory=list)
    memories: list[_Memory] = field(default_factory=list)
    numbers: dict[int, str] = field(default_factory=dict)
    """A number that an operator returned -> its name in the script: a handle is another one in every process."""
    calls: int = 0

    def flush(self) -> None:
        self.path.write_text("\n".join(self.lines) + "\n")

    def tensor(self, value: Tensor) -> str:
        """An expression for a tensor; its memory is written down first, if the script does not have it."""
        if value.numel() == 1 and value.dtype == torch.int64 and int(value) in self.numbers:
            return f"torch.tensor({self.numbers[int(value)]})"
        if not value.numel():
            return f"torch.empty({tuple(value.shape)}, dtype={value.dtype})"
        first = value.data_ptr()
        last = first + reach(value.shape, value.stride()) * value.element_size()
        memory = next((known for known in self.memories if known.first <= first and last <= known.last), None)
        memory = memory or self._remember(first, last)
        return f"view({memory.name}, {value.dtype}, {tuple(value.shape)}, {tuple(value.stride())}, {first - memory.first})"

    def _remember(self, first: int, last: int) -> _Memory:
        memory = _Memory(f"memory_{len(self.memories)}", first, last, _bytes(first, last))
        self.memories.append(memory)
        self.lines.append(f"{memory.name} = buffer({last - first}, {_packed(memory.content)!r})")
        return memory

    def refresh(self) -> None:
        """Write down what changed in known memory since the last call, by torch's own operators."""
        for memory in self.memories:
            now = _bytes(memory.first, memory.last)
            if now != memory.content:
                memory.content = now
                self.lines.append(f"{memory.name}.copy_(buffer({len(now)}, {_packed(now)!r}))")

    def result(self, value: Any) -> None:
        """Name what a call returned."""
        name = f"result_{self.calls}"
        for position, item in enumerate(value if isinstance(value, tuple | list) else [value]):
            part = f"{name}[{position}]" if isinstance(value, tuple | list) else name
            if isinstance(item, Tensor) and item.numel():
                first = item.untyped_storage().data_ptr()
                last = first + item.untyped_storage().nbytes()
                if not any(known.first <= item.data_ptr() < known.last for known in self.memories):
                    known = f"memory_{len(self.memories)}"
                    self.lines.append(f"{known} = bytes_of({part})")
                    self.memories.append(_Memory(known, first, last))
            elif isinstance(item, int) and not isinstance(item, bool) and abs(item) > 2**20:
                self.numbers[item] = part
        for memory in self.memories:
            memory.content = _bytes(memory.first, memory.last)


class _Recorder(TorchDispatchMode):
    """Writes down every operator that is not torch's own, before it runs."""

    def __init__(self, writer: _Writer) -> None:
        super().__init__()
        self.writer = writer
        self.kept: list[Any] = []  # so that no memory is given away twice

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.namespace in OURS:
            return func(*args, **kwargs)
        writer = self.writer
        writer.refresh()
        given = [self._say(value) for value in args] + [f"{name}={self._say(value)}" for name, value in kwargs.items()]
        writer.calls += 1
        name = func._schema.name.replace("::", ".")
        writer.lines.append(f"result_{writer.calls} = torch.ops.{name}(\n    " + ",\n    ".join(given) + ",\n)")
        writer.flush()
        value = func(*args, **kwargs)
        self.kept.append((args, kwargs, value))
        writer.result(value)
        return value

    def _say(self, value: Any) -> str:
        if isinstance(value, Tensor):
            return self.writer.tensor(value)
        if isinstance(value, int) and not isinstance(value, bool) and value in self.writer.numbers:
            return self.writer.numbers[value]
        return f"float({str(value)!r})" if isinstance(value, float) and value != value else repr(value)


def _bytes(first: int, last: int) -> bytes:
    return ctypes.string_at(first, last - first)


def _packed(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content, 9)).decode()


def write_script(path: Path, pair: Pair, candidate: Candidate, verdict: Verdict, load: str) -> None:
    """Write the first call of the verdict's case as a script. `load` are the lines that load the library.

    Runs in a child process, since the call may end it. Raises ValueError where no operator is called.
    """
    child = os.fork()
    if child == 0:
        with suppress(BaseException):
            _record(path, pair, candidate, verdict, load)
        os._exit(0)
    os.waitpid(child, 0)
    if not path.is_file() or "torch.ops." not in path.read_text().split("def view")[1]:
        raise ValueError(f"{candidate.name} calls no operator of its own in this case: there is nothing to write down")


def _record(path: Path, pair: Pair, candidate: Candidate, verdict: Verdict, load: str) -> None:
    case = verdict.case
    says = "\n".join(map(str, verdict.failures))
    title = f"{pair.name}: {verdict.line}".replace("\\", "\\\\")
    writer = _Writer(path, [HEAD.format(title=title, says=says.replace("\\", "\\\\"), load=load)])
    with InProcess(candidate) as runner:
        placement = place(pair, case, settle(pair, case, pair.cases.inputs(case)), runner.arena)
        tensor = runner.arena.tensor
        arguments = {
            name: tensor(value.dtype, value.start, value.sizes, value.strides) if isinstance(value, Placed) else value
            for name, value in placement.arguments.items()
        }
        candidate.enter()
        function: Callable[..., Any] = candidate.load()
        with _Recorder(writer):
            result = function(**arguments)
        _compare(writer, pair, verdict, arguments, result)
        writer.flush()


def _compare(writer: _Writer, pair: Pair, verdict: Verdict, arguments: dict[str, Any], result: Any) -> None:
    """Print the worst elements of each failing output beside what they ought to be."""
    signature = pair.signature
    outputs = {name: arguments[name] for name in signature.written if name in arguments}
    outputs |= named_results(result, tuple(signature.results))
    for failure in verdict.failures:
        value = outputs.get(failure.tensor)
        if isinstance(value, Tensor) and value.numel() and failure.differences:
            writer.lines.append(f"{failure.tensor} = {writer.tensor(value)}")
            for difference in failure.differences[:4]:
                index = list(difference.index)
                writer.lines.append(
                    f'print("{failure.tensor}{index}: got", {failure.tensor}[{", ".join(map(str, index))}].item(), '
                    f'"expected {difference.expected!r}")'
                )
