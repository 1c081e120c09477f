"""`tailer sinks`: what is installed, from the entry points and the declared options."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tailer.cli.main import main
from tailer.sink import load_sink

Capture = pytest.CaptureFixture[str]


def test_every_sink_is_listed_with_all_its_options(capsys: Capture) -> None:
    assert main(["sinks"]) == 0
    said = capsys.readouterr().out
    assert "jsonl (delta-tailer " in said
    assert "  path: The file, or `-` for standard output. (a file or -; required)\n" in said
    assert "kafka (delta-tailer " in said
    assert "  security:\n    security_protocol: " in said


@pytest.mark.parametrize("kind", ["jsonl", "kafka"])
def test_one_sink_is_described_as_json(kind: str, capsys: Capture) -> None:
    assert main(["sinks", kind, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    tables = load_sink(kind).listed_settings()
    names = [name for table in tables.values() for name in table]
    assert [option["name"] for option in found["options"]] == names
    assert found["about"].endswith(".")


def test_an_unknown_sink_is_refused_with_the_one_meant(capsys: Capture) -> None:
    assert main(["sinks", "jsnl"]) == 2
    assert "no sink of type 'jsnl' (did you mean 'jsonl'?)" in capsys.readouterr().err


def test_a_sink_that_cannot_be_loaded_is_listed_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    info = tmp_path / "raven_post-1.0.dist-info"
    info.mkdir()
    about = "Metadata-Version: 2.1\nName: raven-post\nVersion: 1.0\nProvides-Extra: owl\n"
    (info / "METADATA").write_text(about)
    sinks = "raven = raven_post:RavenSink\nowl = raven_post:OwlSink\n"
    (info / "entry_points.txt").write_text(f"[tailer.sinks]\n{sinks}")
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["sinks", "raven"]) == 2
    assert "can't be loaded (No module named 'raven_post')\n" in capsys.readouterr().err
    assert main(["sinks", "owl"]) == 2
    assert "'raven_post'): pip install 'raven-post[owl]'" in capsys.readouterr().err
    assert main(["sinks"]) == 0
    said = capsys.readouterr().out
    assert "raven (raven-post 1.0): the sink 'raven' can't be loaded" in said
    assert "jsonl (delta-tailer " in said
