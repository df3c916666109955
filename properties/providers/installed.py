"""What is installed of a provider."""

from importlib import metadata


def version_of(wheel: str) -> str:
    """The version of a wheel; empty if it is not installed."""
    try:
        return metadata.version(wheel)
    except metadata.PackageNotFoundError:
        return ""
