"""Our kernels as a suite: what the engine is told about this repository. The pairs are in the rooms beside this file."""

import errno
import fcntl
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import properties
from kernelpair.contract.candidate import Candidate
from kernelpair.sources import BuildError, Sources, run_told
from kernelpair.suite import REFERENCE, Places, Suite
from kernelpair.timing.machine import Floors, Machine, Peak, SpeedPage

if TYPE_CHECKING:
    from kernelpair.contract.other_cpu import OtherCpu
    from kernelpair.contract.pair import BenchRow, Pair
    from kernelpair.contract.subject import Subject
    from kernelpair.mutation.mutant import Mutant
    from optimized import Tier

PYTHON = "python"
BYTES = "products of bytes"
HUGE_PAGES = "huge pages"
TILES = re.compile(r"csrc/(tiles/\w+|\w+/\w*_tiles|attention/decode_pairs|delta_rule/chunk)\.(h|cpp)$")
"""Only the tiers that multiply tiles of bf16 compile these in."""
NAMED_TIER = re.compile(r"^kp_tier\((\w+)", re.MULTILINE)
ON_TRIAL = {
    "KERNELPAIR_POISON_SCRATCH": "1",  # the kernels' own scratch is NaN when they get it
    "KERNELPAIR_SPLIT_LOOPS": "1",  # their loops take several threads in small batches too
}
LOADS = "properties.suite:load_library"
SPEED_PAGE = SpeedPage(
    title="# Speed",
    command="kernelpair bench --against torch,onednn,onnxruntime,vllm_cpu,zentorch --one-thread --series --errors "
    "--json speed.json",
    remake="kernelpair speed speed.json docs/speed",
    series={
        "decode": "decode_attention over the length: 32 heads over 8, D 128, one request",
        "prefill": "extend_attention over the new tokens: 32 heads over 8, D 128, one request, nothing cached",
    },
    bounds="The bound is the contract's, derived for\nour kernels ([how](../../6-how-bounds-are-derived.md)); "
    "a peer above 1 breaks a promise that it never gave.",
    memory="Scratch is a thread's or a call's, grows to the largest size that was asked for, and is kept between calls\n"
    "(`csrc/core/scratch.h`). Nothing is proportional to a length squared.",
    end="[All machines](../README.md)",
)


@dataclass(frozen=True)
class NativeSources(Sources):
    """csrc is compiled once a tier; only what a change touches is compiled anew."""

    everything: Sequence[str] = (
        "kernelpair/", "CMakeLists.txt", "pyproject.toml", "kernels/pyproject.toml", "properties/suite.py"
    )  # fmt: skip
    built: Sequence[str] = ("build/release/_kernels.so", "build/release/_trap.so")
    counted: Sequence[str] = ("csrc/", "optimized/", "properties/", "reference/", "serving/")
    include_folders: Sequence[str] = ("csrc",)
    registers: str = r"\bKP_OPERATOR(?:_FOR\(\w+,|\()\s*{name}\b"

    def bring_up_to_date(self, folder: Path) -> None:
        """Compile what has changed in a checkout, one process at a time. A library that is installed, or that
        KERNELPAIR_LIBRARY names, stays as it is."""
        from optimized.library import BUILT, in_checkout

        if os.environ.get("KERNELPAIR_LIBRARY") or not in_checkout():
            return
        if not (BUILT / "build.ninja").is_file():
            raise BuildError(f"{BUILT} is not set up: run `make build`")
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
        try:
            with open(BUILT / "lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                run_told([shutil.which("cmake", path=tools) or "cmake", "--build", str(BUILT)], folder, _tell)
        except OSError as error:
            if error.errno not in (errno.EROFS, errno.EACCES):
                raise
            sources = [folder / "CMakeLists.txt", *(folder / "csrc").rglob("*.*")]
            if _latest(sources) > _latest(BUILT.glob("*.so")):
                raise BuildError(f"csrc has changed, and {BUILT} cannot be written: {error.strerror}") from None

    def tiers_touched(self, files: Collection[str]) -> set[str]:
        from optimized import tiled_tiers

        return set(tiled_tiers()) if all(TILES.search(file) for file in files) else set()

    def unplantable(self, root: Path) -> str:
        from properties import planting

        try:
            planting.compile_commands()
        except BuildError as error:
            return str(error)
        return ""

    def plant(self, root: Path, pair: "Pair", candidate: Candidate, mutant: "Mutant", folder: Path) -> Candidate:
        from properties import planting

        tier = SUITE.planted_tier() if candidate.name == PYTHON and mutant.tier is None else mutant.tier or candidate.name
        return planting.planted(candidate, planting.plant(mutant, kernel_of(pair), tier, folder))

    def at_revision(
        self, root: Path, pair: "Pair", candidate: Candidate, revision: str, changed: Sequence[str], folder: Path
    ) -> Candidate:
        from optimized import best_tier
        from properties import planting

        tier = best_tier() if candidate.name == PYTHON else candidate.name
        library = folder / "_kernels.so"
        if not library.exists():
            planting.library_at(root, revision, [file for file in changed if file.startswith("csrc/")], tier, folder)
        return planting.planted(candidate, planting.Planted(str(library.resolve())))


def _tell(says: str) -> None:
    print(says, file=sys.stderr, flush=True)


def _latest(files: Iterable[Path]) -> float:
    """When the last of them was written."""
    return max((file.stat().st_mtime for file in files), default=0.0)


def kernel_of(pair: "Pair") -> str:
    """The source that is compiled anew where a header of the pair is patched."""
    return pair.files.get("kernel", f"csrc/kernels/{pair.name}.cpp")


class KernelMachine(Machine):
    """Tiers of the compiled library, and the peaks that it measures."""

    floors = Floors("amx", 2, 1.9)
    page = SPEED_PAGE

    @cached_property
    def untimed(self) -> Sequence[str]:  # type: ignore[override]
        return [tier.name for tier in SUITE.tiers() if tier.emulated or tier.run_as]

    @cached_property
    def contest(self) -> Sequence[str]:  # type: ignore[override]
        """Those of widest vectors: the others are there to be right."""
        return [tier.name for tier in SUITE.tiers() if "avx512f" in tier.flags]

    def usual(self, pair: "Pair | None" = None) -> str:
        from optimized import build, selected_tier

        kernel = pair.files.get("kernel") if pair else None
        return selected_tier(products=kernel is None or Path(kernel).stem in build()["multiply"])

    @contextmanager
    def use(self, tier: str) -> Iterator[None]:
        from optimized import selected_tier, use_tier

        with use_tier(selected_tier() if tier in ("", PYTHON) else tier):
            yield

    def peak(self, tier: str, given: Mapping[str, Any]) -> Peak:
        """Tiles and dot products know bf16 and bytes; what else there is, is multiplied in fp32."""
        import torch

        from optimized import selected_tier, tiled_tiers
        from optimized.huge_pages import begins_with_one

        tier = selected_tier() if tier == PYTHON else tier
        tensors = [value for value in given.values() if isinstance(value, torch.Tensor)]
        memory = HUGE_PAGES if any(map(begins_with_one, tensors)) else ""
        dtypes = {tensor.dtype for tensor in tensors}
        if torch.int8 in dtypes or given.get("activation") == "int8":
            return Peak(tier, BYTES, memory)
        plain = tier in tiled_tiers() and torch.bfloat16 not in dtypes
        return Peak(SUITE.planted_tier() if plain else tier, memory=memory)

    def counted(self, pair: "Pair", row: "BenchRow", asked: bool) -> Mapping[str, float]:
        from properties.tile_counts import counted

        return counted(pair, row, asked)

    def product_rate(self, peak: Peak) -> float:
        import torch

        from optimized.peak import product_rate

        with self.use(peak.tier):
            return product_rate(torch.int8 if peak.products == BYTES else torch.bfloat16)

    def read_rate(self, peak: Peak, nbytes: int) -> float:
        from optimized.peak import read_rate

        with self.use(peak.tier):
            return read_rate(nbytes, huge_pages=peak.memory == HUGE_PAGES)


class KernelSuite(Suite):
    """The kernels of an inference engine on CPUs."""

    root = properties.ROOT
    sources = NativeSources()
    machine = KernelMachine()
    preload = ("properties.suite", "properties.thresholds", "optimized.operators", "reference.checks", "serving")
    on_trial = ON_TRIAL
    places = Places("properties/{name}", "reference/{name}.py", "optimized/{name}.py")
    executed = "properties.suite:executed"
    test = "tests/pairs/test_pairs.py::test_pair[{pair}-{candidate}]"

    @cached_property
    def cpus(self) -> "Sequence[OtherCpu]":  # type: ignore[override]
        from properties.amx_claimed import amx

        return [amx()]

    def pairs(self) -> "Mapping[str, Pair]":
        return properties.pairs()

    def pair_names(self) -> Sequence[str]:
        return list(properties.pairs())

    def tiers(self) -> "Sequence[Tier]":
        from optimized import tiers

        return tiers()

    def tier_names(self) -> Sequence[str]:
        """As the build of a checkout names them; of an installed suite the library alone knows."""
        build = self.root / "CMakeLists.txt"
        return [*NAMED_TIER.findall(build.read_text()), PYTHON] if build.is_file() else ()

    def candidates(self, pair: "Pair") -> Sequence[Candidate]:
        names = [PYTHON] if pair.tiers == PYTHON else [tier.name for tier in self.tiers()]
        return [candidate(pair, name) for name in names]

    def reference(self, pair: "Pair") -> Candidate:
        return Candidate(REFERENCE, f"{module_of(pair)}:PAIR.reference")

    def files(self, pair: "Pair") -> Mapping[str, str]:
        return pair.files

    def planted_in(self, pair: "Pair") -> str:
        return PYTHON if pair.tiers == PYTHON else self.planted_tier()

    def planted_tier(self) -> str:
        """The tier in which a mutant is planted that names none: tiles apart, the best."""
        return next(tier.name for tier in reversed(self.tiers()) if tier.runnable and not tier.tiled)

    def facts(self) -> Mapping[str, Any]:
        from optimized import build, selected_tier
        from properties.amx_claimed import how_it_is_told

        amx = next(tier for tier in self.tiers() if tier.products == "tile_registers")
        return {
            "selected_tier": selected_tier(),
            "without_products": selected_tier(products=False),
            "amx_permission": "granted" if amx.runnable else f"not granted: {amx.reason}",
            "amx_for_providers": how_it_is_told(),
            "bf16_products": _dots_told(build()["dot_rate"]),
            "library": {key: value for key, value in build().items() if key in ("compiler", "build_type", "build_directory")},
        }

    @cached_property
    def script(self) -> str:  # type: ignore[override]
        from optimized.library import library_path

        return f'import os\n\nos.environ["KERNELPAIR_TIER"] = "{{candidate}}"\ntorch.ops.load_library("{library_path()}")'

    def saved(self, pair: str) -> Path:
        return properties.saved_cases(pair)

    def mutants(self) -> Mapping[Path, str]:
        return {path: path.parent.name for path in sorted((self.root / "properties").rglob("mutants.toml"))}


def _dots_told(rate: float) -> str:
    """How the measured rate of VDPBF16PS decides between the tiers that have it and those that multiply with FMA."""
    if not rate:
        return "with FMA: no tier that runs here multiplies pairs with VDPBF16PS"
    faster = "avx512_bf16 is preferred" if rate > 1 else "FMA is preferred to avx512_bf16"
    return f"VDPBF16PS at {rate:.2g} of FMA's rate, measured: {faster}"


def module_of(pair: "Pair") -> str:
    """The dotted name of a pair's room."""
    return pair.files["properties"].removesuffix("/__init__.py").replace("/", ".")


def candidate(pair: "Pair", tier: str) -> Candidate:
    """The compiled kernel of `pair` in `tier`, or the one candidate of a pair that is not put on trial by tier. Its workers begin
    with the library loaded, or with what the pair's room names as LOADS."""
    module = module_of(pair)
    prepare = "" if tier == PYTHON else "properties.suite:set_tier"
    known = next((known for known in SUITE.tiers() if known.name == tier), None)
    plain = Candidate(
        tier, f"{module}:PAIR.optimized", prepare, "properties.suite:observe", "properties.suite:taken", ON_TRIAL,
        slow=known is not None and known.emulated, common=getattr(sys.modules.get(module), "LOADS", LOADS),
    )
    if known is None or not known.run_as:
        return plain
    return replace(
        plain, prepare="properties.suite:set_stand_in_tier", run_as=known.run_as, executed="properties.suite:executed",
        left="properties.suite:left", slow=known.products == "tile_registers",
    )


def subject(pair: "Pair", tier: str) -> "Subject":
    """Our kernel in a tier, or the reference, as it is put on trial."""
    from kernelpair.contract.subject import Subject

    return Subject(pair, SUITE.reference(pair) if tier == REFERENCE else candidate(pair, tier))


def load_library() -> None:
    """Load the compiled library and look at this CPU, as every tier does; none is chosen."""
    from optimized import build

    build()


def set_tier(name: str) -> None:
    """Run every kernel of this process in a tier."""
    import optimized

    optimized.set_tier(name)


def set_stand_in_tier(name: str) -> None:
    """The same on a CPU without some of its instructions: a handler carries out those of tiles, and what the library was
    compiled to those of AVX512."""
    from optimized.trapped import trap_tiles

    trap_tiles()
    set_tier(name)


def executed() -> dict[str, int] | None:
    """Tile instructions that were carried out since this was last asked; None where the CPU has them, which tells nobody."""
    from optimized import trapped

    if any(tier.products == "tile_registers" and tier.runnable for tier in SUITE.tiers()):
        return None
    trapped.install()  # again, where a library has taken the signal
    counted = trapped.totals()
    trapped.reset()
    return {f"amx {name}": count for name, count in counted.items() if count}


def left() -> str:
    """Tiles that the last call configured and did not give back: the next user of the thread would pay for their state."""
    from optimized import trapped

    counted = trapped.totals()
    open_ones = counted["configurations"] - counted["releases"]
    return f"tiles were configured {counted['configurations']} times, released {counted['releases']} times" if open_ones else ""


def observe(before: bool) -> str | None:
    """Forget, or tell, which tier ran last."""
    from optimized import forget_last_tier, last_tier

    if before:
        forget_last_tier()
        return None
    return last_tier() or ""


def taken() -> list[str]:
    """The ways that kernels took since this was last asked."""
    from optimized import taken_paths

    return taken_paths()


SUITE = KernelSuite()
