"""Somebody else's kernels on trial: a provider is a module of adapters, functions that call a foreign kernel by our contract.

    from kernelpair.providers.provider import adapts

    NAME = "mine"                             # how reports call it; by default the module's name

    def prepare():                            # optional: load the library; runs once in the worker
        torch.ops.load_library(...)           # load(), also optional, is what a bench calls instead

    @adapts("gdn_gating", limits={"only bfloat16": lambda case: case.dtype != "bfloat16"})
    def gdn_gating(A_log, a, b, dt_bias, softplus_beta=1.0, softplus_threshold=20.0):
        return torch.ops.mine.gating(a, b, A_log, dt_bias)

It is found as a file (`path/to/mine.py`) or by name, through the entry point group `kernelpair.providers`.
"""

import faulthandler
import importlib
import inspect
import os
import select
import signal
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from kernelpair import interruption
from kernelpair.call.system import die_with, signal_name, words_of
from kernelpair.call.undisturbed import undisturbed
from kernelpair.contract.candidate import Candidate, module_of_file
from kernelpair.contract.case import Case
from kernelpair.contract.pair import BenchRow, Pair, Within
from kernelpair.contract.subject import WRONG_CALLS, Subject
from kernelpair.providers.named import ProviderError, place_of
from kernelpair.trial.modes import BUILT_IN, SIDE_EFFECTS

PREFIX = "provider:"  # of a candidate's name: what follows is what `--provider` was given
NO_KERNEL = "has no such kernel"
ON = " on "  # in a candidate's name: what follows is what `--cpu` was given
SKIPPED_TRIALS = ("concurrent", "fuzz", "neighbours", WRONG_CALLS)
IMPORT_SECONDS = 60  # of a file; what it loads for long belongs into its prepare()
ANSWER_SECONDS = 10.0  # of a limit, of fit, claimed and missing(), which the judge asks itself
Limits = Mapping[str, Callable[[Any], bool]]
Calls = Mapping[str, Callable[[], object]]


class Unsupported(Exception):
    """An adapter raises it for a call outside of documented limits, where only the arguments show that, not the case. The
    call is counted as unsupported. (A relation may pass arguments of its own.)"""


@dataclass(frozen=True)
class Adapter:
    """One foreign kernel under one of our contracts.

    `call` takes the reference's arguments as keywords, mutates what the contract mutates and returns what it returns.
    """

    pair: str
    call: Callable[..., Any]
    limits: Limits = field(default_factory=dict)
    """A documented limit of the kernel -> (case) -> does it lie outside of the limit. Such cases are counted, not judged."""
    fit: Callable[[Any], Any] = lambda case: case
    """A case outside of the limits -> one like it within them."""
    silent: Mapping[str, str] = field(default_factory=dict)
    """Relations and built-in trials that say nothing about this kernel -> the reason."""
    rounding: str = ""
    """A rounding that the contract forbids and this kernel is known to do, in the contract's own words (`Within.roundings`)."""
    claims: str = ""
    """A path, such as "amx", that the kernel takes. A call that silently takes another one is the failure `wrong_path`."""
    claimed: Callable[[Any], bool] = lambda case: True
    """The cases in which it takes that path."""
    side_effects: Mapping[str, str] = field(default_factory=dict)
    """What its calls are known to leave changed, by the name that a failure says, such as mxcsr -> the reason. Not judged."""
    absent: Callable[[], str] = lambda: ""
    """Why the kernel is not there on this machine, empty where it is. Asked before its library is loaded."""
    timed: Callable[[Mapping[str, Any]], Calls] | None = None
    """Arguments of a bench row -> each way to do its work, by name: calls with everything prepared that an engine prepares
    once (packed weights, the cache in the kernel's own format); it raises Unsupported for a row that it does not do. None:
    the adapter itself is timed, within its limits, as it is for any case that is no row."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self.call(*arguments, **named)


def adapts(
    pair: str,
    *,
    limits: Limits | None = None,
    fit: Callable[[Any], Any] = lambda case: case,
    silent: Mapping[str, str] | None = None,
    rounding: str = "",
    claims: str = "",
    claimed: Callable[[Any], bool] = lambda case: True,
    side_effects: Mapping[str, str] | None = None,
    absent: Callable[[], str] = lambda: "",
    timed: Callable[[Mapping[str, Any]], Calls] | None = None,
) -> Callable[[Callable[..., Any]], Adapter]:
    """Mark a function as the adapter of `pair` (a name from `kernelpair list`). Raises ProviderError for a declaration of
    another kind than `Adapter` says."""
    for name, given in {"limits": limits, "silent": silent, "side_effects": side_effects}.items():
        if given is not None and not isinstance(given, Mapping):
            raise ProviderError(f"{pair}: {name} must be a mapping, got a {type(given).__name__}")
    functions = {f"limits[{says!r}]": outside for says, outside in (limits or {}).items()}
    for name, function in {**functions, "fit": fit, "claimed": claimed, "absent": absent}.items():
        if not callable(function):
            raise ProviderError(f"{pair}: {name} must be a function, got {function!r}")

    def mark(call: Callable[..., Any]) -> Adapter:
        effects = side_effects or {}
        return Adapter(pair, call, limits or {}, fit, silent or {}, rounding, claims, claimed, effects, absent, timed)

    return mark


def fitted(case: Any, dtypes: Iterable[str] = (), layouts: Mapping[str, Iterable[str]] | None = None,
           int32: Iterable[str] | None = None, **fields: Any) -> Any:
    """The case with other fields: a dtype out of `dtypes`, of its layouts those that `layouts` lists, index dtypes as
    `int32`."""
    dtypes = tuple(dtypes)
    if dtypes and case.dtype not in dtypes:
        fields["dtype"] = dtypes[case.seed % len(dtypes)]
    if layouts is not None:
        fields["layout"] = {name: kind for name, kind in case.layout.items() if kind in tuple(layouts.get(name, ()))}
    if int32 is not None:
        fields["int32"] = tuple(int32)
    return replace(case, **fields)


def other_layouts(allowed: Mapping[str, Iterable[str]]) -> Callable[[Case], bool]:
    """A limit: the case has an argument in a layout that is neither dense nor among those allowed for it."""
    return lambda case: any(
        kind != "dense" and kind not in tuple(allowed.get(name, ())) for name, kind in case.layout.items()
    )


@dataclass(frozen=True)
class Provider:
    """A loaded provider module."""

    spec: str
    place: str
    """Where its module is: a dotted name, or the path of a file."""
    name: str
    about: str
    adapters: Mapping[str, str]
    """Pair -> the attribute of the module that adapts it."""
    module: ModuleType

    def adapter(self, pair: str) -> Adapter:
        found: Adapter = getattr(self.module, self.adapters[pair])
        return found

    def variant(self) -> str:
        """The name of the build that this CPU gets, of a provider whose module says it (`variant()`); else empty."""
        says = getattr(self.module, "variant", None)
        return str(says()) if callable(says) else ""

    def lacks(self, pair: str) -> str:
        """Why there is no kernel for this pair here, empty where there is one."""
        return self.adapter(pair).absent() if pair in self.adapters else f"{self.name} {NO_KERNEL}"

    def calls(self, pair: Pair, row: BenchRow, given: Mapping[str, Any]) -> Calls:
        """What `kernelpair bench --against` times for a row: what the adapter prepares for the pair's rows; where it prepares
        nothing, or the row is a case from elsewhere, the adapter itself. Raises Unsupported, also outside of its limits."""
        if pair.name not in self.adapters:
            raise Unsupported(NO_KERNEL)
        adapter = self.adapter(pair.name)
        if reason := adapter.absent():
            raise Unsupported(reason)
        if adapter.timed is not None and any(row.name == declared.name for declared in pair.bench.rows):
            return adapter.timed(given)
        for limit, outside in adapter.limits.items() if row.case is not None else ():
            if outside(row.case):
                raise Unsupported(limit)
        return {"": lambda: adapter.call(**given)}

    def load(self) -> None:
        """Make this process ready for timing: the module's `load()`, or its `prepare()` if there is none."""
        for name in ("load", "prepare"):
            ready_it = getattr(self.module, name, None)
            if callable(ready_it):
                ready_it()
                return

    def subject(self, pair: Pair) -> Subject:
        """This provider's kernel as it is put on trial under the pair's contract.

        The kernel gets no wrong calls: a contract names the error of each, and a foreign kernel has promised none. It gets no
        calls from several Python threads at once either: engines run one forward pass at a time.
        """
        adapter = self.adapter(pair.name)
        if says := _refuses(adapter.call, pair.reference):
            raise ProviderError(f"{self.name}: {pair.name}: the adapter does not take what the reference takes: {says}")
        unknown = set(adapter.silent) - set(pair.relations) - set(BUILT_IN)
        if unknown:
            raise ProviderError(f"{self.name}: {pair.name} has no trial {', '.join(sorted(unknown))}")
        known = pair.truth.roundings if isinstance(pair.truth, Within) else {}
        if adapter.rounding and adapter.rounding not in known:
            says = f"no rounding {adapter.rounding!r}; known are {', '.join(map(repr, known)) or 'none'}"
            raise ProviderError(f"{self.name}: {pair.name} has {says}")
        unknown = set(adapter.side_effects) - set(SIDE_EFFECTS)
        if unknown:
            says = f"{self.name}: {pair.name}: no side effect is called {', '.join(sorted(unknown))}"
            raise ProviderError(f"{says}; known are {', '.join(SIDE_EFFECTS)}")
        prepare = f"{self.place}:prepare" if callable(getattr(self.module, "prepare", None)) else ""
        entry = f"{self.place}:{self.adapters[pair.name]}"
        candidate = Candidate(PREFIX + self.spec, entry, f"{__name__}:enter" if prepare else "", claims=adapter.claims)
        skipped = (*SKIPPED_TRIALS, *adapter.silent)
        who = f"{self.name}: {pair.name}"
        limits = {says: _asked(outside, f"{who}: the limit {says!r}") for says, outside in adapter.limits.items()}
        fit = _told(adapter.fit, f"{who}: fit", pair.cases.type)
        claimed, effects = _asked(adapter.claimed, f"{who}: claimed"), adapter.side_effects

        def refitted(case: Any) -> Any:
            return pair.cases.refit(case, fit(case))

        return Subject(pair, candidate, limits, refitted, skipped, adapter.rounding, claimed, effects, foreign=True)

    def saved(self, pair: str) -> Path:
        """The file of the saved cases of a pair, which every run with this provider tries first: beside the provider's own
        file, or in the current folder."""
        folder = Path(self.place).parent if self.place.endswith(".py") else Path.cwd()
        return folder / "corpus" / f"{pair}.jsonl"


def candidate_name(spec: str, cpu: str = "") -> str:
    """The name of a provider's candidate, from what `--provider` and `--cpu` were given."""
    return PREFIX + spec + (ON + cpu if cpu else "")


def spec_and_cpu(name: str) -> tuple[str, str]:
    """What `--provider` and `--cpu` were given, from the name of the candidate.

    >>> spec_and_cpu("provider:mine on amx"), spec_and_cpu("provider:made on monday.py")
    (('mine', 'amx'), ('made on monday.py', ''))
    """
    whole = name.removeprefix(PREFIX)
    spec, _, cpu = whole.rpartition(ON)
    return (whole, "") if not spec or cpu.endswith(".py") else (spec, cpu)


def enter(name: str) -> None:
    """Load the provider's library in the process that runs it."""
    module = _module(place_of(spec_and_cpu(name)[0]))
    _told(module.prepare, f"{spec_and_cpu(name)[0]}: prepare()", waits=False)()


def provider(spec: str) -> Provider:
    """The provider of this name or file. Raises ProviderError."""
    place = place_of(spec)
    if place.endswith(".py"):
        _try_import(spec, place)
    try:
        with undisturbed():  # the judge loads it too; what the worker finds changed then is told
            module = _module(place)
    except (Exception, SystemExit) as error:  # it is somebody else's module: whatever it raises is theirs to see
        raise ProviderError(f"provider {spec} does not import: {_said(error)}") from error
    adapters: dict[str, str] = {}
    for attribute, value in vars(module).items():
        if isinstance(value, Adapter):
            if value.pair in adapters:
                raise ProviderError(f"provider {spec} adapts {value.pair} twice: {adapters[value.pair]} and {attribute}")
            adapters[value.pair] = attribute
    if not adapters:
        raise ProviderError(f"provider {spec} adapts nothing: mark functions with kernelpair.providers.provider.adapts(<pair>)")
    about = str(module.__doc__ or "").strip().split("\n")[0]
    name = getattr(module, "NAME", place.rpartition(".")[2] if not place.endswith(".py") else Path(place).stem)
    if not isinstance(name, str):
        raise ProviderError(f"provider {spec}: NAME must be a text, got a {type(name).__name__}")
    return Provider(spec, place, name, about, adapters, module)


def ready(found: Provider) -> str:
    """Why the provider cannot be used on this machine, or empty: what its `missing()` says."""
    missing = getattr(found.module, "missing", None)
    return str(_told(missing, f"{found.name}: missing()")()) if callable(missing) else ""


def _said(error: BaseException) -> str:
    """The exception, and the line of somebody else's file that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = (__file__, interruption.__file__)
    at = next((f" ({frame.filename}:{frame.lineno})" for frame in reversed(frames) if frame.filename not in ours), "")
    return f"{type(error).__name__}: {words_of(error)}{at}"


def _told(function: Callable[..., Any], what: str, kind: type = object, waits: bool = True) -> Callable[..., Any]:
    """The function; what it raises becomes a ProviderError that says whose it is, and so does a result of another kind, or none
    in ANSWER_SECONDS if somebody waits for it, who does so once."""
    given_up = ""

    def call(*arguments: Any) -> Any:
        nonlocal given_up
        if given_up:
            raise ProviderError(given_up)
        try:
            with interruption.at_most(ANSWER_SECONDS) if waits else nullcontext():
                result = function(*arguments)
        except (Exception, SystemExit) as error:  # whatever it raises is theirs to see
            says = f"{what} raised {_said(error)}"
            given_up = says if isinstance(error, TimeoutError) else ""
            raise ProviderError(says) from error
        if not isinstance(result, kind):
            raise ProviderError(f"{what} gave a {type(result).__name__}, not a {kind.__name__}")
        return result

    return call


def _asked(function: Callable[..., Any], what: str) -> Callable[..., bool]:
    """The function, of whose result only the truth is asked."""
    return _told(lambda case: bool(function(case)), what)


def _refuses(call: Callable[..., Any], reference: Callable[..., Any]) -> str:
    """Which argument that the reference demands the function does not take, or demands beyond them; empty if none. Of one that
    calls may leave out its default is told."""
    with suppress(ValueError, TypeError):  # no function of Python
        takes, names = inspect.signature(call), inspect.signature(reference).parameters
        if any(parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) for parameter in names.values()):
            return ""
        defaults = {name: parameter.default for name, parameter in names.items() if parameter.default is not parameter.empty}
        owed = [f"{name}={defaults[name]!r}" for name, mine in takes.parameters.items()
                if name in defaults and mine.default is mine.empty and mine.kind is not mine.VAR_KEYWORD]  # fmt: skip
        if owed:
            return f"calls may leave out what has a default there: {', '.join(owed)}"
        try:
            takes.bind(**{name: None for name in names if name not in defaults})
        except TypeError as error:
            return str(error)
    return ""


def _try_import(spec: str, place: str) -> None:
    """Import the file in a child: it may end its process or never return. ProviderError if it does."""
    reads, writes = os.pipe()
    parent = os.getpid()
    child = os.fork()
    if not child:
        die_with(parent)
        faulthandler.disable()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (1, 2):  # what it prints comes when it is imported here
            os.dup2(nowhere, stream)
        with suppress(BaseException):  # what it raises too
            _module(place)
        os.write(writes, b"!")
        os._exit(0)
    os.close(writes)
    try:
        ended = bool(select.select([reads], [], [], IMPORT_SECONDS)[0])
        if ended and os.read(reads, 1):
            return
    finally:
        os.close(reads)
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if not ended:
        raise ProviderError(f"provider {spec} does not import within {IMPORT_SECONDS} s; load libraries in its prepare()")
    how = f"status {code}" if code >= 0 else signal_name(-code)
    raise ProviderError(f"provider {spec} does not import: it ends the process that imports it ({how})")


def _module(place: str) -> ModuleType:
    return module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
