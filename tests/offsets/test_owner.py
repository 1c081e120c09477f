"""Whose lease is it that lies there, and does its owner live?

A container that is started again in its own place: each owner is a process of its own to which
process numbers tell nothing, as between two containers; all that is left is the lock. And processes
from which the system hides others, by mounts of ``/proc`` as service managers make them.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tailer.errors import ConfigError
from tailer.offsets import owner
from tailer.offsets.owner import is_dead, keep_place, this_process
from tests.s3.fixture import Bucket
from tests.support.sandbox import with_proc

# Acquires, says so with its epoch, and holds on; or says whom it waits for.
PROGRAM = """
import sys, anyio
from pathlib import Path
from tailer.offsets import owner
from tailer.storage import open_offset_store

async def main(address, url, region, numbers, folder):
    if not numbers:
        owner._read_machine_id = lambda: ""
    if folder:
        owner.keep_place(Path(folder))
    store = open_offset_store(
        address, "orders", {"endpoint_url": url, "region": region}, lease_s=60
    )
    async with anyio.create_task_group() as tasks:
        async def tell():
            while not store.waiting_for:
                await anyio.sleep(0.02)
            print("waits for", store.waiting_for, flush=True)
        tasks.start_soon(tell)
        await store.acquire()
        tasks.cancel_scope.cancel()
    print("epoch", store.epoch, flush=True)
    await anyio.sleep_forever()

anyio.run(main, *sys.argv[1:])
"""


@contextmanager
def owning(
    bucket: Bucket, folder: Path | None, proc: str | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that wants the feed, and the first that it says. ``proc`` are the options of a
    ``/proc`` of its own, whose process numbers it goes by."""
    arguments = [bucket.address("state"), bucket.url, str(bucket.options["region"])]
    numbers = "" if proc is None else "by number"
    command = [sys.executable, "-c", PROGRAM, *arguments, numbers, str(folder or "")]
    if proc:
        command = with_proc(proc, *command)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip()
        finally:
            process.kill()


def test_a_container_started_again_in_its_place_takes_up_its_lease(
    bucket: Bucket, tmp_path: Path
) -> None:
    for epoch in (1, 2, 3):
        with owning(bucket, tmp_path) as (process, said):
            assert said == f"epoch {epoch}", "at once: the lease is of a minute"
            process.send_signal(signal.SIGKILL)


def test_an_owner_that_lives_is_never_overtaken(bucket: Bucket, tmp_path: Path) -> None:
    with owning(bucket, tmp_path) as (first, told):
        assert told == "epoch 1"
        first.send_signal(signal.SIGSTOP)  # whatever it does, or does not
        with owning(bucket, tmp_path) as (_, said):
            assert said.startswith(f"waits for process {first.pid}")
        first.send_signal(signal.SIGCONT)


@pytest.mark.parametrize("case", ["no place", "another place", "a copy", "a new file"])
def test_only_the_same_place_tells_that_its_owner_is_dead(
    bucket: Bucket, tmp_path: Path, case: str
) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    with owning(bucket, one) as (process, told):
        assert told == "epoch 1"
        if case == "a copy":
            two.mkdir()
            (two / "tailer.lock").write_bytes((one / "tailer.lock").read_bytes())
        if case == "a new file":
            (one / "tailer.lock").unlink()
            two = one
        process.kill()
    with owning(bucket, None if case == "no place" else two) as (_, said):
        assert said.startswith("waits for process")


def test_a_place_is_told_by_boot_file_and_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep_place(tmp_path)
    try:
        here = this_process()
        assert {"place", "run"} <= here.keys()
        assert not is_dead(here), "another store of the same process"
        monkeypatch.setattr(owner, "_read_machine_id", str)
        earlier = {**here, "run": "another"}
        assert is_dead(earlier)
        assert not is_dead({k: v for k, v in earlier.items() if k != "run"})
        assert not is_dead({**earlier, "place": "boot " + here["place"].partition(" ")[2]})
    finally:
        keep_place(None)
    assert "place" not in this_process()


def test_a_folder_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="must be a folder that this user may write to"):
        keep_place(tmp_path / "file" / "deep")


# What the system hides


def test_two_hardened_services_wait_for_each_other(bucket: Bucket) -> None:
    with owning(bucket, None, "subset=pid") as (first, told):
        assert told == "epoch 1"
        with owning(bucket, None, "subset=pid,hidepid=invisible") as (_, said):
            assert said.startswith(f"waits for process {first.pid} ")


def judged(text: str, *before: str) -> str:
    """What a program that may use the functions of the module prints."""
    program = f"import json, os, sys\nfrom tailer.offsets.owner import *\n{text}"
    done = subprocess.run(
        [*before, sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize(
    "proc", ["hidepid=invisible", "subset=pid", "subset=pid,hidepid=invisible"]
)
def test_an_owner_that_can_t_be_seen_is_not_taken_for_dead(proc: str) -> None:
    assert judged(f"print(is_dead({this_process()}))", *with_proc(proc)) == "False"


def test_one_that_has_ended_is_seen_to_be_dead_behind_a_hidepid() -> None:
    ended = judged("print(this_process())")
    said = judged(
        f"ended = {ended}\n"
        "print(is_dead(ended))\n"
        "for pid in (0, -1, True):\n"
        "    print(is_dead({**ended, 'pid': pid}))\n"
        "print(is_dead({**ended, 'started': None}))\n"
        "print(is_dead({**ended, 'machine': ''}))\n",
        *with_proc("hidepid=invisible"),
    )
    assert said.split() == ["True", *["False"] * 5], (
        "the kernel tells that there is no such process"
    )


def test_a_process_of_another_machine_is_not_looked_for_here() -> None:
    proc = with_proc("subset=pid")
    gone = judged("print(json.dumps(this_process()))", *proc)
    assert "machine" not in json.loads(gone), "whoever reads it has nothing to go by"
    assert judged(f"print(is_dead({gone}))", *proc) == "False", "it may live on another machine"


def test_numbers_of_another_namespace_s_proc_tell_nothing() -> None:
    said = judged(
        "ours, theirs = os.pipe(), os.pipe()\n"
        "if not (child := os.fork()):\n"
        "    os.write(ours[1], json.dumps(this_process()).encode())\n"
        "    os.read(theirs[0], 1)\n"
        "    os._exit(0)\n"
        "known = json.loads(os.read(ours[0], 10_000))\n"
        "print(is_dead(known))\n"
        "os.write(theirs[1], b'.')\n"
        "os.waitpid(child, 0)\n"
        "print(is_dead(known))\n",
        *with_proc("rw", "unshare", "--pid", "--fork"),  # and the /proc outside of it
    )
    assert said.split() == ["False", "True"]
