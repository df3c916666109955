"""A bug planted in a Python module is in every module that uses it, though the ordinary one was loaded before."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import properties
from kernelpair.mutation.mutant import mutants
from properties.suite import SUITE

FILES = {patch.file for mutant in mutants(SUITE).values() for patch in mutant.patches if patch.file.endswith(".py")}
LOOK = """
import inspect, json, sys
from importlib import import_module
from kernelpair.contract.candidate import Candidate
from properties.planting import Planted, planted
from properties.suite import SUITE

files = json.loads(sys.argv[1])
for name in SUITE.preload:  # as in a worker
    import_module(name)
planted(Candidate("mutant", ""), Planted(modules=tuple(files.items()))).enter()
import_module("properties").pairs()
for name in files:  # one may be loaded at its first use only
    import_module(name)
held = {name: [] for name in files}
for module in [module for name, module in sys.modules.items() if name.startswith(("optimized", "properties", "serving"))]:
    for value in vars(module).values():
        if getattr(value, "__module__", "") in files and (inspect.isclass(value) or inspect.isfunction(value)):
            held[value.__module__].append(inspect.getfile(value))
print(json.dumps(held))
"""


def test_what_uses_a_planted_module_has_the_planted_one(tmp_path: Path) -> None:
    files = {}
    for file in FILES:
        copy = tmp_path / file
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(properties.ROOT / file, copy)
        files[file.removesuffix(".py").replace("/", ".")] = str(copy)
    ended = subprocess.run([sys.executable, "-c", LOOK, json.dumps(files)], capture_output=True, text=True, check=False)
    assert not ended.returncode, ended.stderr
    for name, held in json.loads(ended.stdout).items():
        assert set(held) == {files[name]}, f"{name} has {len(held)} users"
