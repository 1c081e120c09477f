"""The commands on a table, and its log for Python programs, say the same of a copy on Azure's or
Google's storage; the account is the environment's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest

from tailer.cli.main import main
from tailer.deltalog import DeltaLog
from tests.clouds.copies import Original, copied, unpacked
from tests.clouds.servers import Container
from tests.support.source import ROOT

ARCHIVE = ROOT / "tests" / "golden" / "data" / "cdf_dv.tar.gz"
COMMANDS = (
    ("history",),
    ("history", "--json"),
    ("snapshot",),
    ("snapshot", "--version", "1"),
    ("verify",),
    ("verify", "--change-source", "derived"),
    ("read", "--from", "0", "--output", "changes.parquet"),
    ("tail", "--from", "0", "--to", "{last}"),
)


@pytest.fixture
def original(container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Original:
    """A table that is also on the server, and the account in the environment."""
    original = unpacked(ARCHIVE, tmp_path)
    anyio.run(copied, [original], container)
    for name, value in container.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    return original


def test_every_command_says_the_same_of_the_copy(
    original: Original, container: Container, tmp_path: Path, capfdbinary: Any
) -> None:
    for name, *more in COMMANDS:
        said = []
        for table in (str(original.table), container.address(original.name)):
            arguments = [part.format(last=original.last) for part in more]
            status = main([name, table, *arguments])
            out, err = capfdbinary.readouterr()
            assert (status, err) == (0, b""), (name, more)
            file = tmp_path / "changes.parquet"
            said.append(out.replace(table.encode(), b"TABLE") or file.read_bytes())
            file.unlink(missing_ok=True)
        assert said[0] == said[1], (name, more)


def test_the_log_for_programs_is_the_same(original: Original, container: Container) -> None:
    here = DeltaLog.for_table(str(original.table))
    there = DeltaLog.for_table(container.address(original.name))
    assert there.table_exists
    assert there.update().version == here.update().version == original.last
    for version in range(original.first, original.last + 1):
        ours, theirs = (log.snapshot_at(version=version) for log in (here, there))
        assert list(there.files(theirs)) == list(here.files(ours))
        assert there.sums(theirs) == here.sums(ours)
    assert list(there.get_changes(0)) == list(here.get_changes(0))
    assert there.history() == here.history()
    assert there.checksum_errors() == here.checksum_errors()
    assert not DeltaLog.for_table(container.address("nothing")).table_exists
