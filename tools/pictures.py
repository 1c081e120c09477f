"""The pictures of the documentation, made from the real thing: the console of a daemon of which
three feeds of thirty fail, in a real Chromium, and the demo in a real terminal.

``python -m tools.pictures`` writes them into docs/pictures/.
"""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import anyio
from rich.console import Console
from rich.text import Text

from tests.console.test_console import Night, is_state, row
from tests.support.source import ROOT

_LINES = 32
_COLUMNS = 110
#: Fonts of other hosts: nothing is loaded from elsewhere.
_FONTS = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)


async def console_pictures(folder: Path, well: int = 27) -> list[Path]:
    """Write the console's pictures into a folder, wide and narrow, light and dark."""
    pictures = []
    with tempfile.TemporaryDirectory() as work:
        async with Night(Path(work), well=well).console() as page:
            for state, feed in (("failed", "gone"), ("blocked", "asking"), ("retrying", "away")):
                await page.until(is_state(feed, state), 120)
            await page.until(row("orders0", "?.textContent.includes('following')"), 120)
            for width, dark in ((1280, False), (360, True)):
                pictures.append(folder / f"console-{width}-{'dark' if dark else 'light'}.webp")
                await page.look(width, dark=dark, picture=pictures[-1])
    return pictures


def terminal_picture(folder: Path, *command: str) -> Path:
    """Run a command in a terminal of its own, and write what it shows into a folder."""
    ours, theirs = pty.openpty()
    size = {"COLUMNS": str(_COLUMNS), "LINES": str(_LINES), "TERM": "xterm-256color"}
    with subprocess.Popen(
        command, stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env=os.environ | size
    ) as process:
        os.close(theirs)
        shown = b"".join(iter(lambda: _read(ours), b""))
    os.close(ours)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}: {shown.decode()}")
    lines = shown.decode().replace("\r\n", "\n").splitlines()
    console = Console(record=True, width=_COLUMNS, file=io.StringIO(), force_terminal=True)
    for line in lines[:_LINES]:
        console.print(Text.from_ansi(line))
    picture = folder / "demo.svg"
    drawn = _FONTS.sub("", console.export_svg(title="make demo"))
    picture.write_text(drawn, encoding="utf-8")
    return picture


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""


def main() -> None:
    """Write all pictures."""
    folder = ROOT / "docs" / "pictures"
    folder.mkdir(exist_ok=True)
    for picture in (
        terminal_picture(folder, sys.executable, "-m", "tools.demo"),
        *anyio.run(console_pictures, folder),
    ):
        print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main()
