"""Packages of others, as they are installed: a module, and the entry point that names it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.source import ROOT


def documented_blocks(page: str, heading: str) -> tuple[str, str]:
    """Return the Python and the TOML that a page has under a heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    python, toml = (
        re.search(rf"^```{language}\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
        for language in ("python", "toml")
    )
    assert python is not None
    assert toml is not None
    return python[1], toml[1]


def install_package(folder: Path, code: str, toml: str) -> None:
    """Install a package of one module: ``toml`` has its one entry point, which names the module."""
    point = re.fullmatch(r'\[project\.entry-points\."(.+)"\]\n(\w+) = "((\w+):\w+)"\n', toml)
    assert point is not None
    group, name, place, module = point.groups()
    (folder / f"{module}.py").write_text(code, encoding="utf-8")
    info = folder / f"{module}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {place}\n")
