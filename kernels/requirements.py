"""What `make` installs: everything that building, testing and both distributions need, or one extra of the kernels."""

import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENGINE, KERNELS = (tomllib.loads((folder / "pyproject.toml").read_text()) for folder in (HERE.parent, HERE))


def needed() -> list[str]:
    """Requirements of pip, without the two distributions themselves."""
    listed = [
        *ENGINE["project"]["dependencies"],
        *ENGINE["project"]["optional-dependencies"]["dev"],
        *KERNELS["build-system"]["requires"],
        *KERNELS["project"]["dependencies"],
    ]
    others = [requirement for requirement in listed if not requirement.startswith("kernelpair")]
    return sorted(others, key=lambda requirement: "==" not in requirement)  # pip fetches what the first line of a name allows


if __name__ == "__main__":
    print(*(KERNELS["project"]["optional-dependencies"][sys.argv[1]] if sys.argv[1:] else needed()), sep="\n")
