"""docs/extending.md: its format is installed as a package is, and passes the public suite."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from sinks.formats.load import load_encoder
from tailer.errors import ConfigError
from tailer.plugins.entry_points import installed_points
from tailer.sink import make_sink
from tailer.sink.encoder import Encoder
from tailer.testing.batches import change_batch
from tailer.testing.conformance import FormatConformance
from tailer.testing.table import TableBuilder
from tests.support.packages import documented_blocks, install_package
from tests.support.source import ROOT

CODE, TOML = documented_blocks("extending.md", "A format in forty lines")
LINES_MAX = 40
MISSPELT = """
from tailer.sink.encoder import Encoder, Records

class Encoder2(Encoder):
    def encodes(self, batch): ...
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that has the package installed, and one whose class has a misspelt method."""
    folder = tmp_path_factory.mktemp("site")
    install_package(folder, CODE, TOML)
    install_package(folder, MISSPELT, TOML.replace("csv = ", "odd = ").replace(
        "csv_format:CsvEncoder", "odd_format:Encoder2"
    ))  # fmt: skip
    install_package(folder, CODE.replace("is_text = True", ""), TOML.replace(
        "csv = ", "raw = ").replace("csv_format", "raw_format"))  # fmt: skip
    return folder


@pytest.fixture
def _installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(site)
    installed_points.cache_clear()
    yield
    installed_points.cache_clear()


def test_it_has_few_lines() -> None:
    assert len([line for line in CODE.splitlines() if line]) <= LINES_MAX


def test_a_configuration_may_name_it(site: Path, tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.create()
    config = tmp_path / "tailer.toml"
    config.write_text(
        '[daemon]\nstate = "state"\n[feeds.f]\ntable = "t"\n[feeds.f.sink]\ntype = "jsonl"\n'
        'path = "out.csv"\nformat = "csv"\nseparator = ";"\n'
    )
    done = subprocess.run(
        [sys.executable, "-m", "tailer", "check", str(config)],
        env={**os.environ, "PYTHONPATH": str(site)}, cwd=ROOT,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.usefixtures("_installed")
@pytest.mark.anyio
async def test_a_sink_writes_lines_of_it(tmp_path: Path) -> None:
    sink = make_sink("jsonl", {"path": "out", "format": "csv", "separator": "; "}, tmp_path)
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    batch = change_batch(schema, [{"id": 7, "name": 'a "b"\nc'}, {"id": 8, "name": None}])
    await sink.open("orders")
    await sink.write(batch)
    await sink.aclose()
    ids, rest = batch.event_ids().to_pylist(), '"insert"; "1"; "2026-01-01 00:00:00.000000Z"'
    lines = (tmp_path / "out").read_bytes().decode().splitlines()
    assert lines == [f'{ids[0]}; "7"; "a ""b""\\nc"; {rest}', f'{ids[1]}; "8"; ; {rest}']


@pytest.mark.usefixtures("_installed")
def test_a_wrong_option_is_refused_as_those_of_our_formats_are(tmp_path: Path) -> None:
    own = {"path": "-", "format": "csv"}
    with pytest.raises(
        ConfigError, match=r"'separators' of sink 'jsonl' is not known .did you mean"
    ):
        make_sink("jsonl", {**own, "separators": ";"}, tmp_path)
    with pytest.raises(
        ConfigError, match=r"must be one of rows, .*, or a format that is installed"
    ):
        make_sink("jsonl", {**own, "format": "cvs"}, tmp_path)
    with pytest.raises(
        ConfigError, match=r"must be one of rows, .*, or a format that is installed"
    ):
        make_sink("jsonl", {**own, "format": "avro"}, tmp_path)


@pytest.mark.usefixtures("_installed")
def test_a_sink_of_lines_takes_text_alone(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="format 'raw' is no text, and this sink takes text"):
        make_sink("jsonl", {"path": "-", "format": "raw"}, tmp_path)
    servers = {"bootstrap_servers": "localhost:9092", "topic": "t"}
    make_sink("kafka", {**servers, "format": "raw", "separator": ";"}, tmp_path)


@pytest.mark.usefixtures("_installed")
def test_a_misspelt_method_is_an_error_when_the_format_is_loaded() -> None:
    sentence = r"format 'odd' can't be loaded: Encoder2.encodes is not .*mean 'encode'\?"
    with pytest.raises(ConfigError, match=sentence):
        load_encoder("odd", {})


@pytest.mark.usefixtures("_installed")
class TestCsv(FormatConformance):
    @pytest.fixture
    def make_encoder(self) -> Callable[[], Encoder]:
        return lambda: load_encoder("csv", {})
