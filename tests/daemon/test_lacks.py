"""What the operating system refuses now and gives later: descriptors, threads, a disk."""

from __future__ import annotations

import errno
import json
import os
import resource
import ssl
import subprocess
import sys
from pathlib import Path

import anyio
import pyarrow as pa
import pytest

from tailer.changes import ChangeFile
from tailer.daemon.discovery import discover_tables
from tailer.decode.unreadable_files import make_unreadable_error
from tailer.errors import CorruptLog, TransientError, healing, may_heal
from tailer.feed.run import run_feed
from tailer.offsets.local import LocalOffsetStore
from tailer.testing.table import TableBuilder
from tests.support.faulty import Script
from tests.support.feeds import state
from tests.support.programs import started, whole_lines
from tests.support.rig import Rig

SCHEMA = pa.schema([("id", pa.int64())])
GIB = 2**30
LACKS = [errno.EMFILE, errno.ENFILE, errno.EIO, errno.ESTALE, errno.EINTR, errno.ENOSPC]


def refused(number: int, kind: type[OSError] = OSError) -> OSError:
    return kind(number, os.strerror(number), "/lake/file")


def configure(folder: Path, feeds: int, more: str = "") -> Path:
    """So many feeds from one table, each to a file of its own."""
    table = TableBuilder(folder / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert([{"id": i} for i in range(3)])
    config = folder / "tailer.toml"
    config.write_text(
        f'[daemon]\nhttp = ""\n{more}'
        + "".join(
            f'[feeds.f{i}]\ntable = "orders"\nfrom = "earliest"\nretry_max_s = 0.5\n'
            f'[feeds.f{i}.sink]\ntype = "jsonl"\npath = "f{i}.jsonl"\n'
            for i in range(feeds)
        )
    )
    return config


def test_feeds_without_a_descriptor_wait_for_one(tmp_path: Path) -> None:
    config = configure(tmp_path, 30)
    outputs = [tmp_path / f"f{i}.jsonl" for i in range(30)]
    few = ("bash", "-c", 'ulimit -Sn 64; exec "$@"', "bash")
    with started("run", config, dev=False, within=few) as program:
        pid = program.process.pid
        program.wait_until(
            lambda: any("tries again" in e and "Too many open files" in e for e in program.errors)
        )
        _, most = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, most))
        program.wait_for(lambda: all(len(whole_lines(output)) == 3 for output in outputs))
        assert program.stop() == 0
    assert not any(" stopped: " in line for line in program.errors), str(program)
    assert any("LimitNOFILE" in line for line in program.errors)
    assert len(program.errors) < 1000
    for output in outputs:
        assert [json.loads(line)["id"] for line in whole_lines(output)] == [0, 1, 2]


# One place says what heals


@pytest.mark.parametrize("number", LACKS)
def test_a_lack_heals_wherever_a_feed_meets_it(tmp_path: Path, number: int) -> None:
    for method in ("list", "stat", "read", "open", "write"):
        folder = tmp_path / method
        folder.mkdir()
        rig = Rig(folder)
        rig.table.insert([{"id": 1}, {"id": 2}])
        script = Script({method: [refused(number)]})
        anyio.run(run_feed, rig.feed(script=script, last=1))
        assert rig.progress.events_delivered == 2, method


def test_what_does_not_heal_is_not_tried_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.table.insert([{"id": 1}])
    for error in (refused(errno.EINVAL), RuntimeError("a bug")):
        script = Script({"write": [error]})
        with pytest.raises(type(error)):
            anyio.run(run_feed, rig.feed(script=script, last=1))


@pytest.mark.parametrize("number", LACKS)
def test_a_file_that_can_t_be_read_for_now_is_not_damaged(number: int) -> None:
    file = ChangeFile("part.parquet", "part.parquet", 1, 0, "an-id", state(), {}, "insert", "files")
    error = make_unreadable_error(file, refused(number))
    assert isinstance(error, TransientError)
    assert "part.parquet" in str(error)
    assert os.strerror(number) in str(error)
    assert isinstance(make_unreadable_error(file, OSError("Corrupt snappy data.")), CorruptLog)


def test_a_lack_of_threads_heals_and_tls_has_numbers_of_its_own() -> None:
    assert may_heal(RuntimeError("can't start new thread"))
    assert may_heal(pa.ArrowException("Unknown error: Failed to launch worker thread: x"))
    assert not may_heal(RuntimeError("a bug"))
    assert not may_heal(refused(errno.EIO, ssl.SSLError))
    assert not may_heal(refused(errno.EACCES))


@pytest.mark.parametrize("error", [MemoryError(), pa.ArrowMemoryError("malloc of size 9 failed")])
def test_a_lack_of_memory_heals_and_says_what_to_do(error: MemoryError) -> None:
    said = r"the feed can't continue, because the memory .* does not suffice.*give it more"
    with pytest.raises(TransientError, match=said), healing("the feed can't continue"):
        raise error


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="limits as Linux has them")
def test_a_command_without_threads_says_so(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "t", pa.schema([("id", pa.int64())]))
    table.create()
    table.insert([{"id": 1}])

    def limited() -> None:
        """A thread needs as much address space as its stack, and there is too little for one."""
        resource.setrlimit(resource.RLIMIT_STACK, (4 * GIB, 4 * GIB))
        resource.setrlimit(resource.RLIMIT_AS, (2 * GIB, 2 * GIB))

    done = subprocess.run(
        [sys.executable, "-m", "tailer", "read", table.folder, "--from", "0",
         "--output", tmp_path / "o.arrow"],
        preexec_fn=limited, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 1
    said = [line for line in done.stderr.splitlines() if not line.startswith("<jemalloc>") and line]
    assert len(said) == 1, "a sentence, and no traceback"
    assert "thread" in said[0]
    assert "let this process have more threads: `ulimit -u`" in said[0]


def test_a_state_folder_without_descriptors_is_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_descriptor(*_: object, **__: object) -> int:
        raise refused(errno.EMFILE)

    offsets = LocalOffsetStore(tmp_path / "state", "orders")
    (tmp_path / "lake" / "orders" / "_delta_log").mkdir(parents=True)
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", no_descriptor)
        with pytest.raises(TransientError, match=r"Too many open files\); let this process"):
            anyio.run(offsets.acquire)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", no_descriptor)
        with pytest.raises(TransientError, match="can't be listed"):
            anyio.run(discover_tables, str(tmp_path / "lake/*/"), {})
    assert anyio.run(discover_tables, str(tmp_path / "lake/*/"), {}).tables.keys() == {"orders"}
