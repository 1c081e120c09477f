"""A misspelt ability of a sink is an error when the sink is loaded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailer.errors import ConfigError
from tailer.plugins.entry_points import installed_points
from tailer.sink import installed_sinks, load_sink

SINK = """
class Sink:
    @classmethod
    def from_options(cls, options, folder): return cls()
    async def open(self, feed): return None
    async def write(self, batch): pass
    async def aclose(self): pass
    {names}
"""


@pytest.fixture
def sinks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that is searched for installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    installed_points.cache_clear()


def install(folder: Path, name: str, names: str) -> None:
    (folder / f"{name}.py").write_text(SINK.format(names=names))
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[tailer.sinks]\n{name} = {name}:Sink\n")
    installed_points.cache_clear()


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("async def announces(self, notice): pass", "announce"),
        ("async def set_offsets(self, feed, offset): pass", "set_offset"),
        ("trait = None", "traits"),
        ("setting = {}", "settings"),
    ],
)
def test_a_misspelt_ability_is_an_error(sinks: Path, written: str, meant: str) -> None:
    install(sinks, f"misspelt_{meant}", written)
    with pytest.raises(ConfigError, match=f"did you mean '{meant}'"):
        load_sink(f"misspelt_{meant}")


def test_other_names_are_the_sinks_own(sinks: Path) -> None:
    install(sinks, "own_names", "def prepare(self, batch): pass\n    prepared = path = kind = ''")
    assert load_sink("own_names").__name__ == "Sink"  # type: ignore[attr-defined]


def test_every_sink_here_can_be_loaded() -> None:
    for kind in installed_sinks():
        load_sink(kind)
