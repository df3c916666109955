"""What a page (`--html`) needs that is not installed with the command; told before torch is loaded."""

import importlib.util

NEEDS = ("jinja2", "matplotlib")


def missing() -> str:
    """What has to be installed before a page can be made; empty if all is there."""
    absent = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    return f"{' and '.join(absent)} cannot be imported: pip install 'kernelpair[report]'" if absent else ""
