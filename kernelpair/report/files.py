"""Files that are whole or not there, whenever the process ends."""

from pathlib import Path


def write_whole(path: Path, text: str) -> None:
    """Write beside the path, then take its place in one step."""
    partial = path.with_name(path.name + ".part")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
