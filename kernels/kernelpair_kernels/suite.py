"""The suite, with the folder of its packages on the path: what the entry point `kernelpair.suites` names."""

import sys
from importlib import import_module
from pathlib import Path

HOME = Path(__file__).resolve().parent
PACKAGES = ("properties", "reference", "serving", "optimized")

if (HOME / PACKAGES[0]).is_dir():  # not so in a checkout, where its root is on the path
    sys.path.insert(0, str(HOME))
    for name in PACKAGES:
        found = Path(import_module(name).__file__ or "").resolve()
        if not found.is_relative_to(HOME):
            raise ImportError(f"the package {name} was imported from {found.parent} already, and the suite `kernels` has its own")

SUITE = import_module("properties.suite").SUITE
