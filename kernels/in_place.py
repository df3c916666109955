"""Exit status 0 where this environment has both distributions installed from this checkout in place, as they are described now.

Something else is there after `pip install .`, after a change of a pyproject.toml, or in an environment of another checkout.
"""

import json
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent
FOLDERS = {"kernelpair": HERE.parent, "kernelpair-kernels": HERE}


def in_place(name: str, folder: Path) -> bool:
    """Is the distribution an editable install of the folder, no older than its description?"""
    try:
        found = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    origin = json.loads(found.read_text("direct_url.json") or "{}")
    if origin.get("url") != folder.as_uri() or not origin.get("dir_info", {}).get("editable"):
        return False
    record = Path(str(found.locate_file(f"{found.metadata['Name'].replace('-', '_')}-{found.version}.dist-info/METADATA")))
    return record.stat().st_mtime >= (folder / "pyproject.toml").stat().st_mtime


def from_here(package: str) -> bool:
    """Does an import take the package of the checkout?"""
    spec = find_spec(package)
    return spec is not None and Path(spec.origin or "").is_relative_to(HERE.parent)


if __name__ == "__main__":
    sys.path[:] = [entry for entry in sys.path if entry not in ("", str(HERE))]
    fine = all(in_place(*each) for each in FOLDERS.items()) and from_here("kernelpair") and from_here("properties")
    sys.exit(0 if fine else 1)
