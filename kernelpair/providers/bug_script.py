"""A case as a script that needs only torch and the kernel: to attach to somebody else's bug report.

The case is built and its candidate called here, while every call of an operator that is not torch's own is written down with the
bytes of its tensors. The file is complete before each call, so that it says what a call does that never comes back. A candidate
that calls no operator is called by its own name. What was written is run before it is handed over.
"""

import base64
import ctypes
import faulthandler
import math
import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from threading import Thread
from typing import IO, Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from kernelpair.call.fault import Extent
from kernelpair.call.layout import reach
from kernelpair.call.memory import Placed
from kernelpair.call.place import Placement, place, settle
from kernelpair.call.results import named_results
from kernelpair.call.runner import InProcess
from kernelpair.call.system import shortened
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import WRONG_CALL, Case
from kernelpair.contract.pair import Inputs, Pair
from kernelpair.contract.verdict import Failure, Verdict
from kernelpair.providers.provider import PREFIX
from kernelpair.providers.script_text import FOOT, HEAD, WRONG
from kernelpair.trial.neighbours import neighbours

OURS = ("aten", "prim", "prims", "_c10d_functional")
SHOWN = ("value", "nonfinite", "unwritten", "untouched", "input_changed", "crash", "hang", "exception", "missing_error")
"""Kinds of failure that a single call can show."""
OF_BYTES = ("untouched", "input_changed")
MOST_BYTES = 64 << 20  # of a buffer that is written down
MOST_DIFFERENCES = 4  # of an output
SECONDS = 60  # for the script's own run, and to record the call
LOOK_SECONDS = 0.02  # between looks whether that has ended
THREADS = 2  # of the call, as on trial


class NoScript(ValueError):
    """No script shows this failure; the message says why."""


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
    guard: str
    extents: list[Extent]
    """Where the buffers of the arguments are in this process."""
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
        memory = self.memory(first, last)
        return f"view({memory.name}, {value.dtype}, {tuple(value.shape)}, {tuple(value.stride())}, {first - memory.first})"

    def memory(self, first: int, last: int) -> _Memory:
        """The memory that holds these bytes: of an argument its whole buffer."""
        known = next((each for each in self.memories if each.first <= first and last <= each.last), None)
        if known is not None:
            return known
        whole = next((extent for extent in self.extents if extent.start <= first and last <= extent.end), Extent(first, last, ()))
        if whole.end - whole.start > MOST_BYTES:
            raise NoScript(f"a buffer takes {(whole.end - whole.start) >> 20} MiB, a script holds {MOST_BYTES >> 20}")
        name = "_and_".join(whole.arguments) + "_memory" if whole.arguments else f"memory_{len(self.memories)}"
        memory = _Memory(name, whole.start, whole.end, _bytes(whole.start, whole.end))
        self.memories.append(memory)
        self.lines.append(f"{name} = buffer({whole.end - whole.start}, {_packed(memory.content)!r}, {self.guard!r})")
        return memory

    def refresh(self) -> None:
        """Write down what changed in known memory since the last call, by torch's own operators."""
        for memory in self.memories:
            now = _bytes(memory.first, memory.last)
            if now != memory.content:
                memory.content = now
                self.lines.append(f"{memory.name}.copy_(buffer({len(now)}, {_packed(now)!r}, {self.guard!r}))")

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
        return _plain(value)


def _plain(value: Any) -> str:
    """An expression for what is no tensor."""
    return f"float({str(value)!r})" if isinstance(value, float) and not math.isfinite(value) else repr(value)


def _bytes(first: int, last: int) -> bytes:
    return ctypes.string_at(first, last - first)


def _packed(content: bytes) -> str:
    return base64.b85encode(zlib.compress(content, 9)).decode()


def write_script(path: Path, pair: Pair, candidate: Candidate, verdict: Verdict, load: str) -> None:
    """Write the call of the verdict's case as a script that shows its first failure. `load` are the lines that load the library,
    with `{candidate}` where they need its name.

    The call is recorded in a child process, since it may end that, and the script is run. Raises NoScript, and leaves no file,
    where the verdict passed, one call cannot show the failure, or the script does not.
    """
    if verdict.passed:
        raise NoScript(f"the case passes on {candidate.name}: there is nothing to show")
    failure, trial = verdict.failures[0], verdict.case.trial
    of_bytes = trial == "neighbours" and failure.kind in OF_BYTES  # of which one buffer has several owners
    if failure.kind not in SHOWN or trial == "fuzz" or of_bytes:
        raise NoScript(f"a single call does not show `{failure.kind}` of the trial {trial}")
    draft = path.with_name(path.name + ".part")
    try:
        for by_name in (False, True):
            draft.unlink(missing_ok=True)
            given_up = _in_a_child(lambda by_name=by_name: _record(draft, pair, candidate, verdict, load, by_name))  # type: ignore[misc]
            if given_up:
                raise NoScript(given_up)
            if draft.is_file() and "torch.ops." in draft.read_text().split("def expect_canaries")[1]:
                break
        _refuse_unless_it_shows(draft, failure)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _in_a_child(work: Callable[[], None]) -> str:
    """Why the work was given up, if it was; that the process died, or hangs, is what a script is for."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        faulthandler.disable()  # how the work ends is told by its parent
        with suppress(BaseException):
            # In a thread of its own: OpenMP's threads are not in a forked process, and the main thread would wait for them.
            doing = Thread(target=_tell, args=(work, theirs))
            doing.start()
            doing.join()
        os._exit(0)
    os.close(theirs)
    until = time.monotonic() + SECONDS
    while os.waitpid(child, os.WNOHANG) == (0, 0):
        time.sleep(LOOK_SECONDS)
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
    os.set_blocking(ours, False)  # what the call has started may hold the other end for ever
    with os.fdopen(ours, "rb") as pipe:
        return (pipe.read() or b"").decode()


def _tell(work: Callable[[], None], pipe: int) -> None:
    with suppress(BaseException):
        try:
            work()
        except NoScript as error:
            os.write(pipe, shortened(str(error)).encode())  # nobody reads yet: more than a pipe holds would wait for ever


def _refuse_unless_it_shows(script: Path, failure: Failure) -> None:
    """Run the script. Raises NoScript."""
    if not script.is_file():
        raise NoScript("the call could not be made here")
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(script.resolve())]
    # In another folder than this: whoever gets the script has none of ours. In files, for what a call starts may hold a pipe.
    with TemporaryFile("w+", errors="replace") as out, TemporaryFile("w+", errors="replace") as err:
        try:
            ran = subprocess.run(command, stdout=out, stderr=err, timeout=SECONDS, env=plain, cwd="/", check=False)
        except subprocess.TimeoutExpired:
            if failure.kind == "hang":
                return
            raise NoScript(f"the script does not end within {SECONDS} s") from None
        code, said, erred = ran.returncode, _whole(out), _whole(err)
    shows = {"crash": code < 0, "hang": False, "exception": code == 1 and "Traceback" in erred}
    if not shows.get(failure.kind, code == 1 and WRONG in said):
        says = (erred or said).strip().splitlines()[-1:] or ["nothing"]
        raise NoScript(f"the script does not show `{failure.kind}`: it ends with status {code} and says {says[0]}")


def _whole(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


def _record(path: Path, pair: Pair, candidate: Candidate, verdict: Verdict, load: str, by_name: bool) -> None:
    case = verdict.case
    title, says = f"{pair.name}: {verdict.line}", "\n".join(map(str, verdict.failures))
    torch.set_num_threads(THREADS)
    with InProcess(candidate) as runner:
        laid_out, settled = _settled(pair, verdict)
        placement = place(pair, laid_out, settled, runner.arena)
        base, view = runner.arena.address, runner.arena.view
        extents = [Extent(base + each.start, base + each.end, each.arguments) for each in placement.extents()]
        writer = _Writer(path, case.guard, extents)
        load = _prepared(candidate) if by_name else load.replace("{candidate}", candidate.name)
        words = {"title": _in_quotes(title), "says": _in_quotes(says), "load": load}
        writer.lines.append(HEAD.format(**words, threads=THREADS, wrong=WRONG))
        arguments = {name: view(value) if isinstance(value, Placed) else value for name, value in placement.arguments.items()}
        candidate.enter()
        function: Callable[..., Any] = candidate.load()
        if by_name:
            result = _call_by_name(writer, candidate.entry, function, arguments)
        else:
            with torch.inference_mode(), _Recorder(writer):  # with autograd, operators made of others would not be seen
                result = function(**arguments)
        _compare(writer, pair, verdict, placement, arguments, result)
        writer.lines.append(FOOT)
        writer.flush()


def _in_quotes(text: str) -> str:
    """As it stands between three quotation marks."""
    return text.replace("\\", "\\\\").replace('"""', '\\"\\"\\"')


def _settled(pair: Pair, verdict: Verdict) -> tuple[Case, Inputs]:
    """What the call is given, and the case that lays it out; of a wrong call what makes it wrong."""
    case = verdict.case
    inputs = pair.cases.inputs(case)
    if case.trial == "neighbours":
        for each in neighbours(pair, case, inputs):
            if verdict.failures[0].detail.startswith(each.says):
                return each.case, settle(pair, each.case, each.inputs, keep_strides=True)
    if not case.trial.startswith(WRONG_CALL):
        return case, settle(pair, case, inputs)
    wrong = pair.wrong_calls[case.trial.removeprefix(WRONG_CALL)].make(case, inputs)
    if wrong is None:
        raise NoScript(f"the case has no room for {case.trial}")
    return case, settle(pair, case, wrong, keep_strides=True)


def _importing(entry: str) -> tuple[str, str]:
    """The folder that has to be on the path, and the expression that imports what an entry names."""
    place, _, attribute = entry.partition(":")
    file = Path(place) if place.endswith(".py") else Path(sys.modules[place].__file__ or "")
    module = file.stem if place.endswith(".py") else place
    folder = file.resolve().parents[module.count(".") + (file.name == "__init__.py")]
    return str(folder), f"importlib.import_module({module!r}).{attribute}"


def _prepared(candidate: Candidate) -> str:
    """Lines that make a process ready for a candidate that is called by its name."""
    lines = ["import importlib", *(f"import os\nos.environ[{name!r}] = {value!r}" for name, value in candidate.on_trial.items())]
    if candidate.prepare:
        foreign = candidate.name.startswith(PREFIX)  # then it is the adapter's own module that makes itself ready
        folder, prepare = _importing(f"{candidate.entry.partition(':')[0]}:prepare" if foreign else candidate.prepare)
        lines += [f"sys.path.insert(0, {folder!r})", f"{prepare}({'' if foreign else repr(candidate.name)})"]
    return "\n".join(lines)


def _call_by_name(writer: _Writer, entry: str, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Write down the call of a Python function, and make it."""
    folder, kernel = _importing(entry)
    said = {name: writer.tensor(value) if isinstance(value, Tensor) else _plain(value) for name, value in arguments.items()}
    given = [f"{name}={value}" for name, value in said.items()]
    writer.calls = 1
    writer.lines += [
        f"sys.path.insert(0, {folder!r})",
        f"kernel = {kernel}",
        "result_1 = kernel(\n    " + ",\n    ".join(given) + ",\n)",
    ]
    writer.flush()
    result = function(**arguments)
    writer.result(result)
    return result


def _compare(
    writer: _Writer, pair: Pair, verdict: Verdict, placement: Placement, arguments: Mapping[str, Any], result: Any
) -> None:
    """Lines that compare what each failure is about with what it ought to be."""
    signature = pair.signature
    outputs = {name: arguments[name] for name in signature.written if name in arguments}
    with suppress(TypeError):  # the results themselves may be what is wrong
        outputs |= named_results(result, tuple(signature.results))
    for failure in verdict.failures:
        value = outputs.get(failure.tensor)
        if failure.kind == "missing_error":
            writer.lines.append('wrong("a result where the contract demands an error")')
        elif failure.kind in OF_BYTES and verdict.case.trial != "neighbours":
            _compare_bytes(writer, pair, verdict.case, placement, failure.tensor)
        elif isinstance(value, Tensor) and value.numel():
            writer.lines.append(f"{failure.tensor} = {writer.tensor(value)}")
            for each in failure.differences[:MOST_DIFFERENCES]:
                numbers = f"float({str(each.expected)!r}), float({str(each.bound)!r})"
                writer.lines.append(f"expect({failure.tensor!r}, {failure.tensor}, {list(each.index)}, {numbers})")


def _compare_bytes(writer: _Writer, pair: Pair, case: Case, placement: Placement, name: str) -> None:
    """Compare the buffer of an argument with what it held, but for what the contract lets the call write."""
    buffer = next((each for each in placement.buffers if name in each.arguments), None)
    if buffer is None or buffer.has_gaps:
        raise NoScript(f"the memory of {name} is too large to be written down")
    block = buffer.block
    free = torch.zeros(block.nbytes, dtype=torch.uint8)
    for argument in buffer.arguments if not case.trial.startswith(WRONG_CALL) else ():
        placed, mask = placement.arguments[argument], pair.signature.written.get(argument)
        if argument in pair.signature.scratch:
            free.fill_(1)
        elif mask is not None:
            size = placed.dtype.itemsize
            strides = (*(stride * size for stride in placed.strides), 1)
            elements = free.as_strided((*placed.sizes, size), strides, placed.start - block.start)
            elements[torch.as_tensor(mask(case, placement.logical)).expand(placed.sizes)] = 1
    first = next(extent for extent in writer.extents if name in extent.arguments)
    memory = writer.memory(first.start, first.end)
    before = buffer.before[block.start - block.first :][: block.nbytes]
    writer.lines.append(
        f"expect_unchanged({name!r}, {memory.name}, {_packed(before)!r}, {_packed(free.numpy().tobytes())!r})"
    )
