"""Signals at many moments of a process's life: at its start, while it works, at its end."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tailer.config.feeds import load_config
from tailer.testing.table import TableBuilder
from tests.support.components import free_port
from tests.support.extent import rest_slow
from tests.support.programs import whole_lines
from tests.support.source import python_files
from tests.support.waiting import PATIENCE_S, eventually

SCHEMA = pa.schema([("id", pa.int64())])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A feed of many small batches, and an address that a process left behind would keep taken."""
    table = TableBuilder(tmp_path / "orders", SCHEMA, cdf=True)
    table.create()
    table.insert([{"id": i} for i in range(2000)])
    file = tmp_path / "tailer.toml"
    file.write_text(
        f'[daemon]\nhttp = "127.0.0.1:{free_port()}"\n'
        '[feeds.orders]\ntable = "orders"\nfrom = "earliest"\nbatch_rows_max = 5\n'
        '[feeds.orders.sink]\ntype = "jsonl"\npath = "out.jsonl"\n'
    )
    return file


def listens(process: subprocess.Popen[str]) -> bool:
    """Whether a process that runs has a handler for SIGHUP."""
    assert process.poll() is None
    return receives(process.pid, signal.SIGHUP)


def receives(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal."""
    with suppress(FileNotFoundError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            name, _, mask = line.partition(":")
            if name == "SigCgt":
                return bool(int(mask, 16) >> (number - 1) & 1)
    return False


@contextmanager
def received(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    """A `tailer` that was just started, and receives signals from now on."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tailer", *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        # The tests themselves may have been started by nohup.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # noqa: PLW1509  # no other thread forks
    )
    try:
        eventually(lambda: listens(process), why="it receives no signals", pause_s=0.002)
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


def end(process: subprocess.Popen[str]) -> tuple[int, str]:
    """The exit status and what was said; a process that does not end fails the test."""
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert "Traceback" not in errors, errors
    return process.returncode, errors


# A process receives signals before it has loaded anything, and so long as it is there.


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
def test_a_hangup_while_the_daemon_is_being_loaded_does_not_end_it(
    config: Path, delay_s: float
) -> None:
    with received("run", config) as process:
        time.sleep(delay_s)
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        assert any("configuration read again" in line for line in process.stderr)
        process.send_signal(signal.SIGTERM)
        assert end(process)[0] == 0


@pytest.mark.parametrize(
    ("command", "number", "status"),
    [
        ("run", signal.SIGINT, 0),
        ("run", signal.SIGTERM, 0),
        ("tail", signal.SIGHUP, 0),
        ("read", signal.SIGINT, 1),
        ("verify", signal.SIGTERM, 143),
    ],
)
def test_a_signal_while_a_command_is_being_loaded_ends_it(
    config: Path, command: str, number: signal.Signals, status: int
) -> None:
    output = config.parent / "out.parquet"
    table = config.parent / "orders"
    arguments: dict[str, list[str | Path]] = {
        "run": [config],
        "tail": [table],
        "read": [table, "--from", "0", "--output", output],
        "verify": [table],
    }
    with received(command, *arguments[command]) as process:
        process.send_signal(number)
        found, errors = end(process)
    assert found == status, errors
    assert not output.exists()
    assert not (config.parent / "out.jsonl").exists(), "nothing was begun"


def test_a_signal_ends_a_command_that_waits(config: Path) -> None:
    table = config.parent / "orders"
    (table / "_delta_log" / f"{2:020}.json").write_text('{"add":')  # as if it were being written
    with received("history", table) as process:
        process.send_signal(signal.SIGTERM)
        status, errors = end(process)
    assert (status, errors) == (143, "tailer: history was interrupted before its end\n")


def test_nothing_else_takes_signals() -> None:
    """What takes one gives it back some time, and then it does what it does by default."""
    takers = re.compile(r"\b(open_signal_receiver|add_signal_handler|signal\.signal)\(")
    files = [file for file in python_files("tailer", "sinks") if takers.search(file.text)]
    assert [file.path.as_posix() for file in files] == ["tailer/process/signals.py"]


# Two in a row: the first asks for an orderly end, the second ends the process.

GAPS_MS = [0, 2, 5, 20, 60]


@pytest.mark.parametrize("gap_ms", rest_slow(GAPS_MS, 0, 20))
def test_two_interrupts_end_the_daemon_whatever_lies_between_them(
    config: Path, gap_ms: int
) -> None:
    with received("run", config) as process:
        assert process.stderr is not None
        while "following" not in process.stderr.readline():
            assert process.poll() is None
        time.sleep(random.uniform(0, 0.2))
        process.send_signal(signal.SIGINT)
        time.sleep(gap_ms / 1000)
        process.send_signal(signal.SIGINT)
        # By a signal it would be killed in the middle of its end.
        assert end(process)[0] in (0, 130)
    address = load_config(config).http
    assert address is not None
    socket.create_server(address).close()  # it is free
    for line in whole_lines(config.parent / "out.jsonl"):
        json.loads(line)


@pytest.mark.parametrize("command", ["tail", "read", "verify"])
def test_two_interrupts_end_a_command_at_any_moment(config: Path, command: str) -> None:
    table = config.parent / "orders"
    more = {
        "tail": ["--from", "earliest"],
        "read": ["--from", "0", "--output", "-"],
        "verify": [],
    }[command]
    allowed = {"tail": (0, 130), "read": (0, 1, 130), "verify": (0, 130)}[command]
    for moment in range(2):
        with received(command, table, *more) as process:
            time.sleep(0.4 * moment + random.uniform(0, 0.4))
            process.send_signal(signal.SIGINT)
            time.sleep(random.choice(GAPS_MS) / 1000)
            process.send_signal(signal.SIGINT)
            assert end(process)[0] in allowed


def test_a_second_interrupt_ends_a_process_whose_threads_do_not(tmp_path: Path) -> None:
    program = tmp_path / "stuck.py"
    program.write_text(
        "import threading, anyio, anyio.to_thread\n"
        "from tailer.process.signals import install_receiver, run_until_stopped\n"
        "from tailer.process.signals import wait_for_stop_signal\n"
        "install_receiver()\n"
        "async def work():\n"
        "    async with anyio.create_task_group() as tasks:\n"
        "        tasks.start_soon(anyio.to_thread.run_sync, threading.Event().wait)\n"
        "        with anyio.CancelScope(shield=True):\n"
        "            print('works', flush=True)\n"
        "            await wait_for_stop_signal()\n"
        "            print('was asked', flush=True)\n"
        "anyio.run(run_until_stopped, work)\n"
    )
    command = [sys.executable, str(program)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "works\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "was asked\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 130


def test_what_does_not_end_ends_with_the_process(tmp_path: Path) -> None:
    program = tmp_path / "stuck.py"
    program.write_text(
        "import threading, anyio, anyio.to_thread\n"
        "from tailer.process.signals import install_receiver, run_until_stopped\n"
        "install_receiver()\n"
        "async def work():\n"
        "    print('works', flush=True)\n"
        "    await anyio.to_thread.run_sync(threading.Event().wait)\n"
        "async def main():\n"
        "    await run_until_stopped(work, grace_s=0.1)\n"
        "anyio.run(main)\n"
    )
    command = [sys.executable, str(program)]
    pipes: dict[str, int] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:  # type: ignore[call-overload]
        assert process.stdout.readline() == "works\n"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 128 + signal.SIGTERM
        assert "does not end and is abandoned" in process.stderr.read()


_STUCK_IN_C = """
import ctypes, anyio
from tailer.process.signals import install_receiver, run_until_stopped
install_receiver()
libc = ctypes.CDLL(None)
mutex = ctypes.create_string_buffer(64)

async def work():
    libc.pthread_mutex_lock(mutex)
    print("works", flush=True)
    libc.pthread_mutex_lock(mutex)  # for ever, as a file system that does not answer

async def main():
    await run_until_stopped(work, grace_s={grace_s})

anyio.run(main)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a mutex is so large there")
@pytest.mark.parametrize(
    ("grace_s", "numbers", "status", "said"),
    [
        (0.1, [signal.SIGTERM], 143, "tailer: the current work does not end and is abandoned\n"),
        (600, [signal.SIGINT, signal.SIGINT], 130, ""),
    ],
)
def test_a_main_thread_that_runs_no_handler_ends_with_the_process(
    grace_s: float, numbers: list[signal.Signals], status: int, said: str
) -> None:
    command = [sys.executable, "-c", _STUCK_IN_C.format(grace_s=grace_s)]
    with subprocess.Popen(
        command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "works\n"
        state = Path(f"/proc/{process.pid}/stat")  # of the main thread
        eventually(lambda: ") S " in state.read_text(), why="it does not wait", pause_s=0.002)
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.1)  # two of a kind that wait are one
        assert end(process) == (status, said)


def test_a_read_is_interrupted_while_threads_decode(tmp_path: Path) -> None:
    table = TableBuilder(tmp_path / "orders", SCHEMA)
    table.create()
    count = 500_000
    for version in range(4):  # more than one group of files
        values = [None, pa.py_buffer(os.urandom(8 * count))]
        file = tmp_path / "orders" / f"{version}.parquet"
        pq.write_table(pa.table({"id": pa.Array.from_buffers(pa.int64(), count, values)}), file)
        add = {"path": file.name, "partitionValues": {}, "size": file.stat().st_size}
        table.commit({"add": {**add, "modificationTime": 0, "dataChange": True}})
    output = tmp_path / "out.arrow"
    interrupted = 0
    for _ in range(20):
        with received("read", tmp_path / "orders", "--from", "1", "--output", output) as process:
            temporary = tmp_path / f".out.arrow.{process.pid}.tmp"
            while process.poll() is None and not temporary.exists():
                time.sleep(0.001)
            process.send_signal(signal.SIGSTOP)
            process.send_signal(signal.SIGTERM)
            process.send_signal(signal.SIGCONT)
            status, errors = end(process)
        assert not temporary.exists()
        assert (status, output.exists()) in [(0, True), (1, False)], errors
        if status:
            assert "no output file was written" in errors
            interrupted += 1
        output.unlink(missing_ok=True)
        if interrupted > 3:
            return
    pytest.fail("hardly any read was interrupted")


_LATE = """
import os, signal, sys
from pathlib import Path
from tailer.__main__ import run

def late(self, target, replace=Path.replace):
    replace(self, target)
    os.kill(os.getpid(), signal.SIGTERM)

Path.replace = late
sys.argv = ["tailer", "read", {table!r}, "--from", "0", "--output", {output!r}]
run()
"""


@pytest.mark.parametrize("name", ["out.arrow", "out.jsonl"])
def test_a_signal_behind_the_last_moment_of_a_read_comes_too_late(config: Path, name: str) -> None:
    output = config.parent / name
    program = _LATE.format(table=str(config.parent / "orders"), output=str(output))
    done = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True)
    assert (done.returncode, done.stderr, output.exists()) == (0, b"", True)


def test_a_signal_that_another_thread_is_given_is_seen_at_once(tmp_path: Path) -> None:
    """The main thread sleeps without end, and is not interrupted."""
    program = tmp_path / "other.py"
    program.write_text(
        "import signal, threading, anyio\n"
        "from tailer.process.signals import install_receiver, run_until_stopped\n"
        "install_receiver()\n"
        "async def work():\n"
        "    ready = threading.Event()\n"
        "    def other():\n"
        "        ready.wait()\n"
        "        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)\n"
        "        threading.Event().wait()\n"
        "    threading.Thread(target=other, daemon=True).start()\n"
        "    ready.set()\n"
        "    await anyio.sleep_forever()\n"
        "print(anyio.run(run_until_stopped, work))\n"
    )
    done = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=PATIENCE_S,
        check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_nohup_keeps_a_hangup_from_ending_a_command(config: Path) -> None:
    table = str(config.parent / "orders")
    command = ["nohup", sys.executable, "-m", "tailer", "tail", table, "--from", "earliest"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        eventually(lambda: listens(process), why="it receives no signals", pause_s=0.002)
        process.send_signal(signal.SIGHUP)
        assert process.stdout is not None
        assert process.stdout.readline(), "it goes on"
        process.send_signal(signal.SIGTERM)
        process.stdout.read()
        assert process.wait(PATIENCE_S) == 0


_ENDS = """
import os, sys

class Loaded:
    def __del__(self, write=os.write):
        write(1, b"taken apart")

sys.loaded = Loaded()
{before}
from tailer.__main__ import run
from tailer.process.signals import install_receiver
install_receiver()
import atexit
atexit.register(print, "registered")
sys.argv = ["tailer", {command!r}]
run()
"""


def ended(command: str, before: str = "") -> tuple[int, list[str]]:
    """The exit status of a program that runs a command, and its last lines."""
    program = [sys.executable, "-c", _ENDS.format(command=command, before=before)]
    done = subprocess.run(program, check=False, stdout=subprocess.PIPE, text=True)
    lines = done.stdout.splitlines()
    return done.returncode, lines[lines.index("registered") :]


def test_a_process_ends_behind_what_is_registered_without_being_taken_apart() -> None:
    assert ended("version") == (0, ["registered"])
    assert ended("nonsense") == (2, ["registered", "taken apart"])


def test_what_others_registered_before_runs_at_the_end() -> None:
    before = "import atexit; atexit.register(print, 'theirs')"
    assert ended("version", before) == (0, ["registered", "theirs", "taken apart"])
