"""Draw the pictures of the docs (`make pictures`): what the commands of the tutorial print on a terminal as SVG, and their pages as PNG."""

from __future__ import annotations

import base64
import contextlib
import functools
import io
import os
import pty
import re
import shlex
import shutil
import struct
import subprocess
import zlib
from collections import Counter
from pathlib import Path

from rich.console import Console
from rich.text import Text

from tests import tour

PICTURES = tour.ROOT / "docs" / "pictures"
HOME = Path("/tmp/ann_")
SHOWN = "/home/ann"
"""In the pictures, instead of `HOME`, which has as many letters."""
WIDTH = 100
"""Of the terminal, in characters."""
PAGE_WIDTH = 760
PAGES = {"compare": ("comparison.html", 756), "report": ("site/index.html", 360), "verification": ("verification.html", 400)}
"""The height of each in pixels."""
STEP = 5
"""Between two values of a colour: a page needs few colours, and a picture of few colours is small."""
PIXELS = """async (picture) => {
  const image = await createImageBitmap(await (await fetch(`data:image/png;base64,${picture}`)).blob());
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  return Array.from(context.getImageData(0, 0, image.width, image.height).data);
}"""
_FONTS = re.compile(r"<!--.*?-->\s*|@font-face \{.*?\}\s*", re.DOTALL)
"""Fonts that a browser would fetch from a server."""


def on_terminal(directory: Path, environ: dict[str, str], *words: str) -> str:
    """What a command writes to a terminal, with its codes, after its command line."""
    ours, theirs = pty.openpty()
    env = {**environ, "TERM": "xterm-256color", "COLUMNS": str(WIDTH), "CI": "1"}  # without the tasks in progress
    with subprocess.Popen(["repro-env", *words], cwd=directory, env=env, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs):
        os.close(theirs)
        written = b""
        with contextlib.suppress(OSError):  # the end
            while chunk := os.read(ours, 4096):
                written += chunk
    os.close(ours)
    return f"\x1b[1m$ {shlex.join(('repro-env', *words))}\x1b[0m\n{written.decode()}"


def svg(text: str, name: str) -> str:
    """The picture of a terminal with this text."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="256")
    console.print(Text.from_ansi(text.replace("\r\n", "\n")))
    return _FONTS.sub("", console.export_svg(title="repro-env", unique_id=name)).replace("Fira Code", "monospace")


def draw(directory: Path, environ: dict[str, str]) -> None:
    """Draw the pictures of the project of the tutorial after its last command."""
    ids = [path.name.rpartition("-")[2] for path in sorted((directory / "runs").glob("2*"))[:2]]
    html = str(HOME / "verification.html")
    subprocess.run(["repro-env", "--quiet", "verify", "--html", html], cwd=directory, env=environ, check=True)
    commands: dict[str, list[tuple[str, ...]]] = {
        "capture": [("capture",)],
        "verify": [("exec", "train.py"), ("verify",)],
        "runs": [("runs", "list", "--metric", "loss"), ("runs", "compare", *ids)],
    }
    for name, lines in commands.items():
        text = "\n".join(on_terminal(directory, environ, *words) for words in lines)
        text = re.sub(r"note +set here but not in the spec.*?(?=next:)", "", text, flags=re.DOTALL)  # variables of this machine
        (PICTURES / f"{name}.svg").write_text(svg(text.replace(str(HOME), SHOWN), name))


def png(values: list[int], width: int) -> bytes:
    """A picture with a palette. `values`: red, green, blue and opacity of each pixel."""
    rounded = bytes(min(255, round(value / STEP) * STEP) for value in values)
    pixels = [rounded[start : start + 3] for start in range(0, len(rounded), 4)]
    palette = {colour: number for number, (colour, _) in enumerate(Counter(pixels).most_common(256))}
    nearest = functools.cache(
        lambda colour: min(palette, key=lambda other: sum(abs(a - b) for a, b in zip(colour, other, strict=True)))
    )
    rows = (pixels[start : start + width] for start in range(0, len(pixels), width))
    lines = b"".join(b"\0" + bytes(palette[nearest(colour)] for colour in row) for row in rows)
    header = struct.pack(">IIBBBBB", width, len(pixels) // width, 8, 3, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def photograph() -> None:
    """Take the pictures of the pages of the tutorial."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (file, height) in PAGES.items():
            page = browser.new_page(viewport={"width": PAGE_WIDTH, "height": height}, color_scheme="light")
            path = HOME / file
            path.write_text(path.read_text().replace(str(HOME), SHOWN))
            page.goto(path.as_uri())
            taken = base64.b64encode(page.screenshot()).decode()
            (PICTURES / f"{name}.png").write_bytes(png(browser.new_page().evaluate(PIXELS, taken), PAGE_WIDTH))
        browser.close()


def main() -> None:
    HOME.mkdir()
    try:
        environ = tour.environ(HOME)
        for done in tour.play(HOME, environ):
            print(f"{done.code}  {done.line}")
        directory = HOME / "digits"
        environ = {**environ, "VIRTUAL_ENV": str(directory / ".venv")}
        draw(directory, environ)
        photograph()
    finally:
        shutil.rmtree(HOME)


if __name__ == "__main__":
    main()
