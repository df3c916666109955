"""A mistake in a pair is refused where the pair is made: by name, with file and line."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

from kernelpair.call.runner import HarnessError, InProcess
from kernelpair.contract.candidate import Candidate
from kernelpair.contract.case import Case
from kernelpair.contract.mistakes import PairError, parameters, told, with_place
from kernelpair.contract.pair import Pair, Signature, Within, everything
from kernelpair.contract.subject import Subject
from kernelpair.providers.provider import Adapter
from kernelpair.search.search import Search
from kernelpair.suite import PlainSuite, Suite, loaded
from kernelpair.trial.check import check
from properties import ROOT
from tests.kernels import kernel
from tests.selftest.toy import PAIR as TOY
from tests.selftest.toy import ToyCase, reference

HERE = re.escape(__file__)


@pytest.mark.parametrize(
    ("signature", "field", "name"),
    [
        (Signature(written={"outt": everything}), "written", "outt"),
        (Signature(scratch=["work"]), "scratch", "work"),
        (Signature(indices=["slot"]), "indices", "slot"),
        (Signature(layouts={"y": ["padded"]}), "layouts", "y"),
        (Signature(fused=[("x", "z")]), "fused", "z"),
        (Signature(dtypes=["bfloat17"]), "dtypes", "bfloat17"),
        (Signature(dtypes=["nn"]), "dtypes", "nn"),
        (Signature(layouts={"x": ["paded"]}), "layouts", "paded"),
    ],
)
def test_a_signature_names_what_there_is(signature: Signature, field: str, name: str) -> None:
    with pytest.raises(PairError, match=rf"^{HERE}:\d+: pair toy: Signature\.{field}.*'{name}'"):
        replace(TOY, signature=signature)


def test_several_mistakes_are_told_together() -> None:
    with pytest.raises(PairError, match=r"'a'.*; .*'b'"):
        replace(TOY, signature=Signature(scratch=["a", "b"]))


@pytest.mark.parametrize("what", ["reference", "optimized"])
def test_reference_and_kernel_are_functions(what: str) -> None:
    with pytest.raises(PairError, match=rf"^{HERE}:\d+: pair toy: {what} is None, which is no function$"):
        replace(TOY, **{what: None})  # type: ignore[arg-type]


def kept(x: Tensor) -> Tensor:
    return x


def _wrapped() -> Callable[[Tensor], Tensor]:
    """By what it says of itself it is `kept`, as what torch.compile makes of that would be."""
    return wraps(kept)(lambda x: -x)


class _Kernel:
    def __call__(self, x: Tensor) -> Tensor:
        return x

    def method(self, x: Tensor) -> Tensor:
        return x


wrapped, part, one = _wrapped(), partial(torch.clamp, min=0), _Kernel()


@pytest.mark.parametrize(
    "optimized", [_wrapped(), lambda x: x, partial(torch.clamp, min=0), _Kernel(), _Kernel().method]
)
def test_a_kernel_that_a_worker_would_not_find_by_its_name_is_refused(optimized: Any) -> None:
    pair = replace(TOY, optimized=optimized, files={})
    suite = PlainSuite(ROOT, [pair])
    found, broken = loaded(suite)
    assert not found and re.match(r".*toy\.py: pair toy: optimized is .*, which no module keeps by a name", broken["toy"])
    with pytest.raises(PairError, match="which no module keeps by a name"):
        suite.candidates(pair)
    elsewhere = PlainSuite(ROOT, [pair], {"toy": [kernel("good")]})
    assert loaded(elsewhere)[0] == {"toy": pair}, "who names the place of the kernel need not keep it by its name"
    assert elsewhere.files(pair)["properties"] == "tests/selftest/toy.py"


@pytest.mark.parametrize("name", ["kept", "wrapped", "part", "one", "_Kernel.method"])
def test_a_kernel_is_found_by_the_name_that_its_module_keeps_it_by(name: str) -> None:
    optimized = _Kernel.method if name == "_Kernel.method" else globals()[name]
    case = type("NamedCase", (ToyCase,), {"__module__": __name__})
    pair = replace(TOY, optimized=optimized, cases=replace(TOY.cases, type=case))
    (candidate,) = PlainSuite(ROOT, [pair]).candidates(pair)
    assert candidate.entry == f"{__name__}:{name}" and candidate.load() is optimized
    builtin = replace(TOY, optimized=torch.relu)
    assert PlainSuite(ROOT, [builtin]).candidates(builtin)[0].entry == "torch:relu"


def test_a_constant_field_is_one_of_the_case() -> None:
    with pytest.raises(PairError, match=r"Cases\.constant names 'rowz', which is no field of ToyCase"):
        replace(TOY, cases=replace(TOY.cases, constant=["rowz"]))


def test_an_unknown_field_is_told_by_name_with_file_and_line() -> None:
    with pytest.raises(TypeError, match="writen") as caught:
        Signature(writen={})  # type: ignore[call-arg]
    assert re.match(rf"{HERE}:\d+: TypeError: .*writen", told(caught.value))


def test_a_reference_of_any_arguments_says_nothing_of_them() -> None:
    def takes_any(**arguments: object) -> None:
        reference(**arguments)  # type: ignore[arg-type]

    assert parameters(takes_any) is None
    assert parameters(reference) == ["x", "slots", "out", "scale"]
    assert replace(TOY, reference=takes_any, signature=Signature(scratch=["work"])).name == "toy"


def bound_too_many(case: ToyCase, inputs: Mapping[str, Tensor], truth: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {"out": torch.ones_like(truth["out"]), "oout": torch.ones(1)}


@pytest.mark.parametrize("bound", [bound_too_many, partial(bound_too_many)])
def test_a_bound_is_one_of_an_output(bound: object) -> None:
    pair = replace(TOY, truth=Within(bound))  # type: ignore[arg-type]
    candidate = kernel("good")
    says = "pair toy: a bound for oout, which is no output"
    with InProcess(candidate) as runner, pytest.raises(HarnessError, match=says) as caught:
        check(Subject(pair, candidate), ToyCase(rows=2), runner)
    assert isinstance(bound, partial) or re.match(rf"{HERE}:\d+", str(caught.value))


class _BreaksWhenAsked(dict[str, Pair]):
    """The second pair breaks when it is asked for."""

    def __getitem__(self, name: str) -> Pair:
        return replace(TOY, signature=Signature(scratch=["work"])) if name == "broken" else super().__getitem__(name)


class _Suite(Suite):
    root = Path()

    def pairs(self) -> Mapping[str, Pair]:
        return _BreaksWhenAsked(one=TOY, broken=TOY, two=TOY)

    def candidates(self, pair: Pair) -> list[Candidate]:
        return [kernel("good")]


@dataclass(frozen=True, kw_only=True)
class _Square(Case):
    """A case whose width is always given."""

    width: int


_WITH_A_HEIGHT = st.builds(
    _Square,
    width=st.just(1),
    height=st.just(1),
)


def of_other_parameters(x: Tensor, slots: Tensor, out: Tensor, factor: float) -> None:
    reference(x, slots, out, factor)


def refuses_all(x: Tensor, slots: Tensor, out: Tensor, scale: float) -> None:
    raise IndexError("no such dimension")


@pytest.mark.parametrize(
    ("pair", "says"),
    [
        (replace(TOY, reference=of_other_parameters),
         rf"^{HERE}:\d+: pair toy: `inputs` makes x, slots, out, scale; of the reference: .* keyword argument 'scale'"),
        (replace(TOY, signature=replace(TOY.signature, results=()), reference=lambda **given: (1, 2)),
         rf"^{HERE}:\d+: pair toy: the reference: the call returned 2 values, the contract names 0"),
        (replace(TOY, truth=Within(lambda case, inputs, truth: truth["out"])),  # type: ignore[arg-type, return-value]
         rf"^{HERE}:\d+: pair toy: the bound is a Tensor, not a mapping of outputs to theirs; the outputs are out"),
        (replace(TOY, reference=refuses_all),
         r"^IndexError: no such dimension; raised at tests/engine/test_mistakes\.py:\d+, in refuses_all; the case was"),
        (replace(TOY, signature=replace(TOY.signature, written={"out": lambda case, given: torch.ones(7, 2) > 0})),
         rf"^{HERE}:\d+: pair toy: the mask of out \(Signature\.written\) has shape \[7, 2\] for one of shape \[1, 1\]"),
    ],
    ids=["parameters", "results", "bound", "raises", "written"],
)  # fmt: skip
def test_a_mistake_that_a_call_shows_is_told_with_its_place(pair: Pair, says: str) -> None:
    candidate = kernel("good")
    with InProcess(candidate) as runner, pytest.raises(HarnessError, match=says):
        check(Subject(pair, candidate), ToyCase(), runner)


@pytest.mark.parametrize(
    ("case", "says"),
    [(ToyCase(int32=("slots",)), r"int32: no index argument 'slots'; known are none"),
     (ToyCase(layout={"slots": "padded"}), r"layout\.slots: unknown layout 'padded'; known are dense")],
)  # fmt: skip
def test_a_case_of_an_argument_that_the_signature_does_not_name_is_refused(case: ToyCase, says: str) -> None:
    candidate = kernel("good")
    pair = replace(TOY, signature=replace(TOY.signature, indices=(), layouts={}))
    drawn = r"^the strategy draws what the signature does not know: toy: "
    with InProcess(candidate) as runner, pytest.raises(HarnessError, match=rf"{drawn}{says}; the case was "):
        check(Subject(pair, candidate), case, runner)


def test_a_field_that_the_case_lacks_is_told_with_the_line_that_gives_it() -> None:
    candidate = kernel("good")
    subject = Subject(replace(TOY, cases=replace(TOY.cases, type=_Square, strategy=_WITH_A_HEIGHT)), candidate)
    with InProcess(candidate) as runner, pytest.raises(TypeError) as caught:
        Search(subject, runner).run(5, None, 1, None)
    within = caught.value.with_traceback(caught.tb.tb_next)  # what is raised within the engine has no frame of this file
    lines = Path(__file__).read_text().splitlines()
    at = f"tests/engine/test_mistakes.py:{1 + lines.index('    height=st.just(1),')}, which gives _Square this field"
    assert with_place(within).endswith(f"; raised at {at}")


adapter_of_other_parameters = Adapter("toy", of_other_parameters)


@pytest.mark.parametrize("name", ["of_other_parameters", "adapter_of_other_parameters"])
def test_a_kernel_of_other_parameters_is_told_where_they_are(name: str) -> None:
    candidate = replace(kernel("good"), entry=f"{__name__}:{name}")
    with InProcess(candidate) as runner:
        (failure,) = check(Subject(TOY, candidate), ToyCase(), runner).failures
    assert re.search(r"\(tests/engine/test_mistakes\.py:\d+, its parameters: every argument comes by its name\)$", failure.detail)


def test_one_broken_pair_does_not_hide_the_others() -> None:
    found, broken = loaded(_Suite())
    assert list(found) == ["one", "two"]
    assert list(broken) == ["broken"]
    assert re.match(rf"{HERE}:\d+: pair toy: Signature\.scratch names 'work'", broken["broken"])
    assert loaded(_Suite(), ["one"]) == ({"one": TOY}, {})


def test_an_error_is_told_with_the_line_of_the_module_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_syntax.py").write_text("x = 1\ny = (\n")
    (tmp_path / "broken_import.py").write_text("import re\n\nfrom re import nothing\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name, line in (("broken_syntax", 2), ("broken_import", 3)):
        with pytest.raises((SyntaxError, ImportError)) as caught:
            __import__(name)
        assert told(caught.value).startswith(f"{tmp_path / name}.py:{line}: ")
