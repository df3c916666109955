"""The names by which `--provider` finds somebody's kernels. Torch is not needed to tell a wrong one."""

import os
from importlib import metadata
from pathlib import Path

GROUP = "kernelpair.providers"


class ProviderError(ValueError):
    """There is no such provider, or it cannot be used here; the message says what to do."""


def known() -> dict[str, str]:
    """Name -> module of every installed provider."""
    return {entry.name: entry.value for entry in metadata.entry_points(group=GROUP)}


def place_of(spec: str) -> str:
    """The absolute path of a provider's file, or the module of an installed one. Raises ProviderError."""
    if spec.endswith(".py"):
        if not Path(spec).is_file():
            raise ProviderError(f"there is no provider file {spec}")
        return os.path.abspath(spec)
    names = known()
    if spec not in names:
        raise ProviderError(f"unknown provider {spec!r}; known are {', '.join(sorted(names)) or 'none'}, or give a file .py")
    return names[spec]
