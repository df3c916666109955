"""A page as a picture, by a browser without a window: for the documentation, and for tests that a page looks as it should."""

import shutil
import subprocess
import tempfile
from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--hide-scrollbars",
)  # fmt: skip
DARK = "--blink-settings=preferredColorScheme=0"
SECONDS = 120.0  # for a browser on a loaded machine
NARROW = 500  # pixels: what Chromium makes of a narrower window
TALLEST = 12_000  # pixels of a page
MARGIN = 24  # pixels of background that are left below a page


def browser() -> str:
    """The program of an installed browser; empty if there is none."""
    return next((found for name in BROWSERS if (found := shutil.which(name))), "")


def screenshot(page: Path, picture: Path, width: int = 1200, height: int = 0, dark: bool = False) -> None:
    """Write the page as a PNG of 256 colours, `width` pixels wide; without a height as tall as the page is.

    Raises RuntimeError where there is no browser, or where it writes no picture.
    """
    program = browser()
    if not program:
        raise RuntimeError(f"no browser is installed: one of {', '.join(BROWSERS)} is needed")
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.png"
        command = [
            program, *FLAGS, *([DARK] if dark else []), f"--user-data-dir={folder}/profile",
            f"--window-size={max(width, NARROW)},{height or TALLEST}", f"--screenshot={raw}", page.resolve().as_uri(),
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
        if not raw.is_file():
            raise RuntimeError(f"{program} wrote no picture: {done.stderr.strip()[-400:]}")
        _cropped(raw, picture, whole=bool(height))


def _cropped(raw: Path, picture: Path, whole: bool) -> None:
    """Without the background below the page, in few colours."""
    import numpy as np
    from PIL import Image

    image = Image.open(raw).convert("RGB")
    if not whole:
        pixels = np.asarray(image)
        used = np.flatnonzero((pixels != pixels[-1, -1]).any(axis=(1, 2)))
        image = image.crop((0, 0, image.width, min(int(used[-1]) + MARGIN if len(used) else 1, image.height)))
    image.quantize(256, method=Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(picture, optimize=True)
