"""Providers: somebody else's kernels, found by file or name, judged within documented limits, one defect after another."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import properties
from kernelpair.contract.case import to_line
from kernelpair.providers.named import ProviderError, known
from kernelpair.providers.provider import Provider, fitted, provider
from properties.store_cache.cases import StoreCacheCase
from tests.command_line import kernelpair

Capture = pytest.CaptureFixture[str]
PAIR = properties.pairs()["store_cache"]
ROOT = Path(__file__).resolve().parent.parent.parent
HEAD = """
\"\"\"Two kernels of mine.\"\"\"
import os
import torch
from dataclasses import replace
from kernelpair.providers.provider import Unsupported, adapts

LOADED = []

def prepare():
    LOADED.append(True)

def rows(indices, pad_slot):
    return torch.ones_like(indices, dtype=torch.bool) if pad_slot is None else indices != pad_slot

def store(k, v, k_cache, v_cache, indices, pad_slot):
    assert LOADED, "prepare was not called"
    live = rows(indices, pad_slot)
    k_cache[indices[live].long()], v_cache[indices[live].long()] = k[live], v[live]
"""
GOOD = HEAD + """
@adapts("store_cache", limits={"no pads": lambda case: bool(case.pads)},
        fit=lambda case: replace(case, pads=(), pad_in_range=False),
        silent={"bytes": "mine knows its dtype"})
def store_cache(k, v, k_cache, v_cache, indices, pad_slot=None):
    \"\"\"my_store\"\"\"
    store(k, v, k_cache, v_cache, indices, pad_slot)
"""
TWO_DEFECTS = HEAD + """
@adapts("store_cache")
def store_cache(k, v, k_cache, v_cache, indices, pad_slot=None):
    store(k, v, k_cache, v_cache, indices, pad_slot)
    if indices.dtype == torch.int32 and len(indices) and v.shape[2]:
        v_cache[indices[rows(indices, pad_slot)].long()] = 1.0     # the first: int32 slots
    if k.shape[1] > 1 and len(indices) and k.shape[2] and pad_slot is None:
        k_cache[indices.long()[0], 1] = 1.0                        # the second: the second head
"""

pytestmark = pytest.mark.usefixtures("in_a_folder_of_its_own")


def written(text: str, name: str = "mine.py") -> str:
    Path(name).write_text(text)
    return name


# --- finding one ---


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("x = 1", "adapts nothing"),
        ("import nowhere_to_be_found", "does not import: ModuleNotFoundError"),
        (GOOD + "\nagain = store_cache", "adapts store_cache twice"),
        (GOOD + "\nraise SystemExit(0)", r"does not import: SystemExit: 0 \(.*\.py:"),
        (HEAD + "class Odd(Exception):\n    __str__ = None\nraise Odd", r"does not import: Odd: \(its message cannot be read"),
        (GOOD + "\nNAME = 5", "NAME must be a text, got a int"),
        (GOOD + "\nos._exit(0)", r"it ends the process that imports it \(status 0\)"),
        (GOOD + "\nos.kill(os.getpid(), 11)", r"it ends the process that imports it \(SIGSEGV\)"),
        (GOOD.replace('{"no pads": lambda case: bool(case.pads)}', '["no pads"]'), "limits must be a mapping, got a list"),
        (GOOD.replace("lambda case: bool(case.pads)", "'pads'"), r"limits\['no pads'\] must be a function, got 'pads'"),
    ],
)
def test_a_module_that_is_no_provider_is_refused(text: str, says: str) -> None:
    with pytest.raises(ProviderError, match=says):
        provider(written(text, f"{abs(hash(text))}.py"))


def test_a_file_that_hangs_when_it_is_imported_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernelpair.providers.provider.IMPORT_SECONDS", 0.5)
    hangs = written("import os, time\nopen('pid', 'w').write(str(os.getpid()))\ntime.sleep(600)\n" + GOOD, "hangs.py")
    with pytest.raises(ProviderError, match=r"hangs\.py does not import within 0\.5 s; load libraries in its prepare\(\)"):
        provider(hangs)
    assert not Path("/proc", Path("pid").read_text()).exists(), "the process that imports it goes on"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("bool(case.pads)", "torch.zeros(2)", "mine: store_cache: the limit 'no pads' raised RuntimeError: Boolean value"),
        ("bool(case.pads)", "case.padding", r"mine: store_cache: the limit 'no pads' raised AttributeError: .* \(.*mine\.py:"),
        ("replace(case, pads=(), pad_in_range=False)", "None", "mine: store_cache: fit gave a NoneType, not a StoreCacheCase"),
        ("def store_cache(k, v,", "def store_cache(keys, v,", "does not take what the reference takes: missing a"),
        ("pad_slot=None)", "pad_slot)", "takes: calls may leave out what has a default there: pad_slot=None"),
        ("LOADED.append(True)", "sys.exit(4)", r"mine\.py: prepare\(\) raised NameError"),
    ],
)
def test_a_mistake_in_a_declaration_is_the_providers(capsys: Capture, old: str, new: str, says: str) -> None:
    mine = written(GOOD.replace(old, new))
    assert kernelpair("check", "store_cache", "--provider", mine, "--examples", "20", "--seed", "1") == 2
    out = capsys.readouterr().out
    assert re.search(f"provider fault: .*{says}", out) and "Next: mend what is at fault" in out
    status, err = kernelpair("replay", '{"pair":"store_cache","v":1}', "--provider", mine), capsys.readouterr().err
    if "fit gave" not in says:  # nothing is fitted to limits in a replay
        assert status == 2 and re.fullmatch(f"kernelpair replay: (provider fault: )?.*{says}.*\n", err), err


def test_a_limit_that_hangs_is_given_up_once(capsys: Capture) -> None:
    mine = written(GOOD.replace("bool(case.pads)", "all(iter(lambda: 1, 0))"))
    assert kernelpair("check", "store_cache", "--provider", mine, "--examples", "5") == 2
    says = r"provider fault: mine: .* the limit 'no pads' raised TimeoutError: it did not return within 10 s \(.*mine\.py:"
    assert re.search(says, capsys.readouterr().out)


def test_what_would_take_the_judge_all_memory_is_an_error_instead(capsys: Capture) -> None:
    """Never touched, so that it takes no memory where nothing forbids it."""
    much = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") * 3 // 4
    mine = written(GOOD.replace("bool(case.pads)", f"torch.empty({much}, dtype=torch.uint8).dim() > 1"))
    assert kernelpair("check", "store_cache", "--provider", mine, "--examples", "5") == 2
    assert re.search("the limit 'no pads' raised RuntimeError: .*allocate", capsys.readouterr().out)


def test_a_result_that_requires_a_gradient_is_blamed_alone(capsys: Capture) -> None:
    text = HEAD + """
@adapts("act_and_mul")
def act_and_mul(x, activation="silu"):
    return torch.zeros(*x.shape[:-1], x.shape[-1] // 2, dtype=x.dtype).requires_grad_()
"""
    case = '{"pair":"act_and_mul","v":1}'
    assert kernelpair("replay", case, "--provider", written(text), "--in-process") == 1
    out = capsys.readouterr().out
    assert "out: the result has requires_grad set" in out and "argument_form" not in out


def test_wrong_usage_is_2(capsys: Capture) -> None:
    mine = written(GOOD)
    odd = written(GOOD.replace('"store_cache"', '"stoer_cache"'), "odd.py")
    absent = written(GOOD + "\ndef missing():\n    return 'this CPU lacks magic'\n", "absent.py")
    for arguments, says in (
        (("--provider", "nobody"), "unknown provider 'nobody'; known are onednn, onnxruntime, sgl_kernel, vllm_cpu, "),
        (("--provider", "nobody.py"), "there is no provider file nobody.py"),
        (("--provider", odd), "has not: unknown pair 'stoer_cache' (did you mean store_cache?)"),
        (("--provider", absent), "cannot be used here: this CPU lacks magic"),
        (("--provider", mine, "--tier", "scalar"), "give one of them"),
        (("--provider", mine, "--known", "no.toml"), "--known: no.toml: "),
    ):
        assert kernelpair("check", *arguments) == 2
        assert says in capsys.readouterr().err


def test_our_own_providers_are_installed_and_adapt_pairs_only() -> None:
    assert set(known()) == {"onednn", "onnxruntime", "sgl_kernel", "vllm_cpu", "zentorch"}
    for name in known():
        found: Provider = provider(name)
        assert found.adapters and found.about
        for pair in found.adapters:
            subject = found.subject(properties.pairs()[pair])
            assert not subject.asked_for("wrong_call:any") and subject.candidate.name == f"provider:{name}"


def test_list_says_what_is_covered_and_what_not(capsys: Capture) -> None:
    assert kernelpair("list", "--provider", written(GOOD)) == 0
    out = capsys.readouterr().out
    assert "store_cache  my_store" in out and "unsupported  no pads" in out and "bytes: mine knows its dtype" in out
    assert "not covered: act_and_mul" in out
    assert kernelpair("list", "--provider", "mine.py", "--json") == 0
    assert json.loads(capsys.readouterr().out)["covered"]["store_cache"]["limits"] == ["no pads"]


# --- limits ---


def test_cases_outside_of_limits_are_counted_and_not_judged(capsys: Capture) -> None:
    options = ("--examples", "60", "--seed", "1", "--json", "r.json")
    assert kernelpair("check", "store_cache", "--provider", written(GOOD), *options) == 0
    result = json.loads(Path("r.json").read_text())["results"][0]
    assert result["unsupported"]["no pads"] > 10 and result["cases"] >= 55  # the fitted ones are tried in their place
    assert "bytes" not in result["trials"] and not any(trial.startswith("rejects") for trial in result["trials"])
    assert "drawn outside of documented limits" in capsys.readouterr().out


def test_a_kernel_that_supports_nothing_was_not_tested(capsys: Capture) -> None:
    nothing = written(HEAD + '@adapts("store_cache", limits={"nothing": lambda case: True})\ndef f(**given):\n    pass\n')
    assert kernelpair("check", "store_cache", "--provider", nothing, "--examples", "5", "--seed", "1", "--in-process") == 3
    out = capsys.readouterr().out
    assert "nothing was tested" in out and re.search(r"drawn outside of documented limits: nothing \(\d+\)\n", out)


def test_an_adapter_may_refuse_by_its_arguments() -> None:
    text = HEAD + '@adapts("store_cache")\ndef f(**given):\n    raise Unsupported("not today")\n'
    options = ("--examples", "9", "--in-process", "--json", "r.json")
    assert kernelpair("check", "store_cache", "--provider", written(text), *options) == 3
    result = json.loads(Path("r.json").read_text())["results"][0]
    assert result["failures"] == [] and result["cases"] == 0 and result["unsupported"] == {"not today": 9}


def test_a_relation_outside_of_the_limits_ends_there(capsys: Capture) -> None:
    text = GOOD.replace('{"no pads": lambda case: bool(case.pads)}', '{"dense": lambda case: bool(case.layout)}')
    case = to_line("store_cache", 1, StoreCacheCase(rows=2, trial="layout"))
    assert kernelpair("replay", case, "--provider", written(text), "--in-process") == 0
    assert "store_cache[mine.py] pass" in capsys.readouterr().out


def test_replay_skips_what_is_not_supported(capsys: Capture) -> None:
    case = to_line("store_cache", 1, StoreCacheCase(rows=2, pads=(0,)))
    assert kernelpair("replay", case, "--provider", written(GOOD), "--in-process") == 2
    assert "skipped: outside of the documented limits: no pads" in capsys.readouterr().out


def test_fitted_keeps_what_fits() -> None:
    case = StoreCacheCase(seed=3, dtype="uint8", layout={"k": "padded", "v": "offset"}, int32=("indices",))
    fit = fitted(case, ["bfloat16", "float16"], {"k": ("padded",)}, (), rows=4)
    assert (fit.dtype, fit.layout, fit.int32, fit.rows) == ("float16", {"k": "padded"}, (), 4)
    assert fitted(case, ["uint8"]).dtype == "uint8"


# --- several defects ---


def groups_of(name: str) -> dict[str, str]:
    failures = json.loads(Path(name).read_text())["results"][0]["failures"]
    return {failure["group"]: failure["case"] for failure in failures}


def test_the_search_goes_on_to_the_second_defect(capsys: Capture) -> None:
    options = ("store_cache", "--provider", written(TWO_DEFECTS), "--examples", "600", "--seed", "1", "--in-process")
    assert kernelpair("check", *options, "--json", "r.json") == 1
    found = groups_of("r.json")
    assert any("indices int32" in group for group in found), found
    assert any("indices int32" not in group for group in found), found
    assert len(found) <= 4, found  # each is told once, by kind and tensor
    first = next(case for group, case in found.items() if "indices int32" in group)
    assert '"int32":["indices"]' in first and '"heads"' not in first and '"layout"' not in first
    out = capsys.readouterr().out
    assert "group " in out and f"--provider {'mine.py'}" in out and "pytest" not in out


def test_a_ledger_keeps_quiet_about_what_is_known_and_says_when_it_passes(capsys: Capture) -> None:
    options = ("store_cache", "--provider", written(TWO_DEFECTS), "--examples", "400", "--seed", "1", "--in-process")
    kernelpair("check", *options, "--json", "r.json")
    entries = "".join(
        f"[[known]]\ngroup = {json.dumps(group)}\ncase = {json.dumps(case)}\nreason = 'told them'\nlink = 'there'\n"
        for group, case in groups_of("r.json").items()
    )
    Path("known.toml").write_text(entries)
    capsys.readouterr()
    assert kernelpair("check", *options, "--known", "known.toml") == 0
    out = capsys.readouterr().out
    assert out.count("told them there") == entries.count("[[known]]") and "no longer fails" not in out
    mended = written(GOOD.replace("limits=", "limits={} and "), "mended.py")
    options = ("--examples", "20", "--known", "known.toml", "--in-process")
    assert kernelpair("check", "store_cache", "--provider", mended, *options) == 0
    assert capsys.readouterr().out.count("no longer fails: store_cache ") == entries.count("[[known]]")


def test_a_crash_is_one_group_and_the_search_goes_on() -> None:
    text = TWO_DEFECTS.replace("v_cache[indices[rows(indices, pad_slot)].long()] = 1.0", "os.abort()")
    options = ("store_cache", "--provider", written(text), "--examples", "150", "--seed", "2", "--json", "r.json")
    assert kernelpair("check", *options) == 1
    found = groups_of("r.json")
    assert [group for group in found if group.startswith("crash") and "indices int32" in group], found
    assert [group for group in found if not group.startswith("crash")], found


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[known]]\ngroup='g'\nreason='r'", "entry 1 lacks case"),
        ("[[known]]\ngroup='g'\nreason='r'\ncase='{}'", "entry 1: case: "),
        (2 * """[[known]]\ngroup='g'\nreason='r'\ncase='{"pair":"p","v":1}'\n""", "entry 2: the group 'g' of p has an entry"),
        ("[[known]]\ngroup=1", "entry 1 must have texts named group, case, reason, link"),
        ("[known]\na=1", "expected [[known]] tables alone"),
        ("nonsense", "known.toml: "),
    ],
)
def test_a_bad_ledger_is_refused(capsys: Capture, text: str, says: str) -> None:
    Path("known.toml").write_text(text)
    assert kernelpair("check", "--provider", written(GOOD), "--known", "known.toml") == 2
    assert says in capsys.readouterr().err


def test_a_provider_of_the_old_spelling_still_works(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(GOOD.replace("kernelpair.providers.provider", "kernelpair.provider"))
    sys.modules.pop("kernelpair.provider", None)
    with pytest.warns(DeprecationWarning, match=r"now kernelpair\.providers\.provider"):
        mine = provider(str(tmp_path / "mine.py"))
    assert list(mine.adapters) == ["store_cache"]


# --- what importing one changes ---

FAST_MATH = GOOD + """
torch.set_flush_denormal(True)
torch.set_default_dtype(torch.float64)
"""


def test_a_module_that_changes_how_numbers_are_computed_is_told_and_changes_nothing_here(capsys: Capture) -> None:
    assert kernelpair("check", "--provider", written(FAST_MATH), "--examples", "10") == 1
    out = capsys.readouterr().out
    assert "fp_state: mxcsr: when it was loaded: 0x9fc0 instead of 0x1f80 (flush-to-zero on, denormals-are-zero on)" in out
    assert "settings: default_dtype: when it was loaded: torch.float64 instead of torch.float32" in out
    assert torch.get_default_dtype() is torch.float32
    assert torch.tensor(1e-40).mul(1.0).item() > 0, "denormals are flushed to zero in the judging process"


ELSEWHERE = GOOD + """
import signal, sys
signal.signal(signal.SIGINT, signal.SIG_IGN)
os.chdir("/")
sys.setrecursionlimit(5000)
"""


def test_a_module_that_goes_elsewhere_takes_nobody_with_it(capsys: Capture) -> None:
    before = os.getcwd(), signal.getsignal(signal.SIGINT), sys.getrecursionlimit()
    assert kernelpair("check", "--provider", written(ELSEWHERE), "--examples", "10", "--json", "r.json") == 1
    assert "settings: working_directory: when it was loaded: / instead of " in capsys.readouterr().out
    assert Path("r.json").is_file() and before == (os.getcwd(), signal.getsignal(signal.SIGINT), sys.getrecursionlimit())


TAKES_OVER = GOOD + """
import sys
torch.where = lambda *given: given[1] * 0
torch.Tensor.abs = lambda tensor: tensor * 0
torch.set_default_device("meta")
sys.stdout = None
os.close(1)
"""


def test_a_module_that_takes_over_what_a_judge_works_with_is_judged_all_the_same() -> None:
    command = [sys.executable, "-m", "kernelpair", "check", "store_cache", "--provider", os.path.abspath(written(TAKES_OVER))]
    ended = subprocess.run([*command, "--examples", "20"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 1 and "settings: default_device: when it was loaded: meta instead of cpu" in ended.stdout, ended


def test_to_load_one_loads_no_compiler() -> None:
    """torch's own takes a second, and where it finds its tools it leaves a folder among the temporary files."""
    loads = f"import sys; from kernelpair.providers.provider import provider; provider({written(GOOD)!r})"
    says = "; print([name for name in sys.modules if name.startswith('torch._inductor')])"
    ended = subprocess.run([sys.executable, "-c", loads + says], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


@pytest.mark.parametrize("line", ['{"pair":"rms_norm","v":1,"dtype":"bfloat16","form":"residual"}', '{"pair":"rms_norm","v":1}'])
@pytest.mark.parametrize(("result", "says"), [
    ("None", "layout: out: the call returned no such result"), ("3.0", "layout: out: "), ("x.flatten()[:0]", "layout: out: "),
])
def test_a_kernel_that_returns_something_else_is_told_what_it_owes(capsys: Capture, line: str, result: str, says: str) -> None:
    mine = written(HEAD + '''
@adapts("rms_norm")
def norm(x, weight=None, eps=1e-6, residual=None, gate=None, group_size=None, gemma=False, in_place=False):
    return {result}
'''.replace("{result}", result))
    assert kernelpair("replay", line, "--provider", mine) == 1
    assert says in capsys.readouterr().out


@pytest.mark.parametrize("how", [(), ("--in-process",)])
def test_an_exception_of_a_kernel_says_where_it_was_raised(capsys: Capture, how: tuple[str, ...]) -> None:
    mine = written(HEAD + '''
def helper(k):
    return k[10**6]

@adapts("store_cache")
def store_cache(k, v, k_cache, v_cache, indices, pad_slot=None):
    helper(k)
''')
    assert kernelpair("replay", '{"pair":"store_cache","v":1}', "--provider", mine, *how) == 1
    assert re.search(r"exception: IndexError: .* \(mine\.py:\d+, in helper\)", capsys.readouterr().out)
