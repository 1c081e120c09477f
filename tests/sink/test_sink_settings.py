"""A sink of another distribution that declares its settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailer.errors import ConfigError
from tailer.sink import make_sink

MODULE = """
from tailer.settings import REQUIRED, Setting
from tailer.sink import Sink


class PigeonSink(Sink):
    settings = {
        "loft": Setting("text", REQUIRED, "Where the pigeon flies."),
        "rings": Setting("whole", 2, "Rings on its leg."),
    }

    def __init__(self, options, folder):
        self.options, self.folder = options, folder

    @classmethod
    def from_options(cls, options, folder):
        return cls(options, folder)

    async def open(self, feed): ...
    async def write(self, batch): ...
    async def aclose(self): ...
"""


@pytest.fixture
def pigeon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The type of a sink that is installed for the test."""
    (tmp_path / "pigeon_post.py").write_text(MODULE)
    info = tmp_path / "pigeon_post-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: pigeon-post\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tailer.sinks]\npigeon = pigeon_post:PigeonSink\n")
    monkeypatch.syspath_prepend(tmp_path)
    return "pigeon"


def test_declared_options_arrive_checked_and_complete(pigeon: str, tmp_path: Path) -> None:
    sink = make_sink(pigeon, {"loft": "home"}, tmp_path)
    assert vars(sink) == {"options": {"loft": "home", "rings": 2}, "folder": tmp_path}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "option 'loft' of sink 'pigeon' is missing, and must be a string"),
        ({"loft": "x", "ring": 1}, "'ring' of sink 'pigeon' is not known .did you mean 'rings'"),
        ({"loft": "x", "rings": 0}, "'rings' of sink 'pigeon' is 0, and must be a whole number"),
    ],
)
def test_declared_options_are_refused_as_all_are(
    pigeon: str, options: dict[str, object], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said):
        make_sink(pigeon, options, tmp_path)
