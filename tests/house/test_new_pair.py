"""A new pair is five new files and no edit: those of docs/4-adding-a-pair.md, in a checkout that has no other pair."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import properties

ROOT = properties.ROOT
PAGE = ROOT / "docs" / "4-adding-a-pair.md"
BLOCK = re.compile(r"^```(?:python|cpp)\n(?:#|//) (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STEM = "row_scale"
NATIVE = {f"csrc/ops/{STEM}.cpp", f"csrc/kernels/{STEM}.h", f"csrc/kernels/{STEM}.cpp"}
FILES = {f"reference/{STEM}.py", f"properties/{STEM}/__init__.py", *NATIVE}
KEPT = {  # what every pair stands on, of folders that also hold kernels
    "optimized": {"__init__.py", "library.py", "operators.py", "tiers.py", "trapped.py"},
    "properties": {"__init__.py", "suite.py", "shared/__init__.py", "shared/strategies.py", "scenarios/__init__.py"},
    "reference": {"__init__.py", "checks.py"},
}
KERNELPAIR = "import sys; from kernelpair.cli import main; sys.exit(main())"


def blocks() -> dict[str, str]:
    """Path -> code of the page's complete files."""
    return {path: code for path, code in BLOCK.findall(PAGE.read_text()) if "/" in path}


class Checkout:
    """A copy of the project without its kernels."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name in ("CMakeLists.txt", "pyproject.toml"):
            shutil.copy(ROOT / name, folder / name)
        for package in ("csrc/core", "csrc/simd", "csrc/tiles", "csrc/trap", "kernelpair", *KEPT):
            kept = KEPT.get(package)
            for path in sorted((ROOT / package).rglob("*")):
                wanted = kept is None or str(path.relative_to(ROOT / package)) in kept
                if path.is_file() and "__pycache__" not in path.parts and wanted:
                    self.write(str(path.relative_to(ROOT)), path.read_bytes())

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def build(self) -> None:
        """Configure and build as CMakeLists.txt says."""
        tools = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        ninja = ["-G", "Ninja"] if shutil.which("ninja", path=tools) else []
        configure = ["-S", ".", "-B", "build", f"-DPython_EXECUTABLE={sys.executable}", *ninja]
        for step in (configure, ["--build", "build", "-j", "2"]):
            command = [shutil.which("cmake", path=tools) or "cmake", *step]
            done = subprocess.run(
                command, cwd=self.folder, env={**os.environ, "PATH": tools}, capture_output=True, text=True, check=False
            )
            assert not done.returncode, done.stdout[-4000:] + done.stderr[-4000:]

    def kernelpair(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run the command line of this checkout. Without site (-S), so that no editable install hides it."""
        environment = {key: value for key, value in os.environ.items() if not key.startswith("KERNELPAIR")}
        environment |= {
            "PYTHONPATH": os.pathsep.join([str(self.folder), *(entry for entry in sys.path if entry.endswith("-packages"))]),
            "KERNELPAIR_LIBRARY": str(self.folder / "build" / "_kernels.so"),
        }
        command = [sys.executable, "-S", "-c", KERNELPAIR, *arguments]
        return subprocess.run(command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False)


def test_the_page_shows_five_files() -> None:
    assert set(blocks()) == FILES


def test_five_files_make_a_pair_and_a_wrong_character_is_found(tmp_path: Path) -> None:
    checkout = Checkout(tmp_path)
    for name, code in blocks().items():
        checkout.write(name, code.encode())
    checkout.build()
    healthy = checkout.kernelpair("check", "--examples", "40", "--seed", "1")
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    assert healthy.stdout.count(STEM) >= 3 and "0 failed" in healthy.stdout

    kernel = f"csrc/kernels/{STEM}.cpp"
    right, wrong = "load(x + d, lanes) * factors", "load(x + d, lanes) + factors"
    assert blocks()[kernel].count(right) == 1
    checkout.write(kernel, blocks()[kernel].replace(right, wrong).encode())
    checkout.build()
    broken = checkout.kernelpair("check", STEM, "--tier", "scalar", "--examples", "40", "--seed", "1")
    assert broken.returncode == 1, broken.stdout + broken.stderr
    assert f"FAIL {STEM}[scalar] value: out: " in broken.stdout and f"kernelpair replay '{{\"pair\":\"{STEM}\"" in broken.stdout
