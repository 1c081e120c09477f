"""What happens to a daemon, to its machine, and to those that it talks to: one function a fault.

Each has a daemon of its own, which is killed at its end. A fault that is not possible with a
round's store or sink, or on this machine, is a kill.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tests.hostile.lies import passing_lies
from tests.support.link import TROUBLES
from tests.support.waiting import PATIENCE_S

if TYPE_CHECKING:
    from tests.torture.round import Round

#: Few descriptors, and a largest file: with both a daemon can begin, and soon can't go on.
_DESCRIPTORS = ("prlimit", "--nofile=64:64")
_LARGEST_FILE = ("prlimit", "--fsize=60000:60000")
#: Seconds that a clock jumps; a server that checks signatures takes the small ones.
_STEPS = (-200, -60, -5, 5, 60, 200)
_LARGE_STEPS = (-3 * 86_400, -3600, 3600, 3 * 86_400)
_FILL = bytes(65_536)


@cache
def fake_clock() -> str:
    """The library that steps a program's clock (Debian: libfaketime); empty where it is missing."""
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    return str(found[0]) if found else ""


def kill(now: Round) -> None:
    """`kill -9`, wherever it is."""
    with now.daemon() as process:
        now.progress(process)
        time.sleep(now.chance.uniform(0.0, 0.05))


def terminate(now: Round) -> None:
    """SIGTERM, after which it ends with status 0."""
    with now.daemon() as process:
        now.progress(process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, now.daemons.tail()


def stand_still(now: Round) -> None:
    """SIGSTOP, also for longer than its lease."""
    with now.daemon() as process:
        now.progress(process)
        process.send_signal(signal.SIGSTOP)
        time.sleep(now.chance.uniform(0.5, 8.0))
        process.send_signal(signal.SIGCONT)
        now.progress(process)


def two_daemons(now: Round) -> None:
    """A second daemon on the same target, and one of both is killed."""
    with now.daemon() as process:
        now.progress(process)
        with now.daemon("two") as other:
            now.progress(other, "two")
            now.chance.choice((process, other)).kill()
            now.progress(other, "two")


def standing_twin(now: Round) -> None:
    """The first daemon stands still until a second one has taken over, and then goes on."""
    with now.daemon() as process:
        now.progress(process)
        process.send_signal(signal.SIGSTOP)
        with now.daemon("two") as other:
            time.sleep(now.chance.uniform(4.0, 7.0))
            now.progress(other, "two")
            process.send_signal(signal.SIGCONT)
            now.progress(other, "two")
            now.progress(process)


def few_descriptors(now: Round) -> None:
    """A limit of 64 open files."""
    with now.daemon(within=_DESCRIPTORS) as process:
        now.progress(process)


def largest_file(now: Round) -> None:
    """No file may grow beyond 60,000 bytes."""
    with now.daemon(within=_LARGEST_FILE) as process:
        now.progress(process)


def full_disk(now: Round) -> None:
    """The disk of the state and of local targets is full, and later is not."""
    filler = now.disk / "filler"
    with now.daemon() as process:
        now.progress(process)
        try:
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(_FILL)
            now.progress(process)
        finally:
            filler.unlink()
        now.progress(process)


def clock(now: Round) -> None:
    """The machine's clock jumps, forwards or back, while the daemon runs. libfaketime also has
    sleeps of threads fail; the daemon may end by that, and is started again."""
    library = fake_clock()
    assert library
    at = now.folder / "clock"
    at.write_text("+0s")
    within = (
        "env", f"LD_PRELOAD={library}", f"FAKETIME_TIMESTAMP_FILE={at}",
        "FAKETIME_CACHE_DURATION=1", "FAKETIME_DONT_FAKE_MONOTONIC=1",
    )  # fmt: skip
    signed = now.place.remote or now.recipe.sink == "http"
    with now.daemon(within=within) as process:
        now.progress(process)
        for _ in range(now.chance.randint(1, 3)):
            step = now.chance.choice(_STEPS if signed else (*_STEPS, *_LARGE_STEPS))
            at.write_text(f"{step:+d}s")
            now.progress(process)


def reload(now: Round) -> None:
    """A changed configuration is loaded, while the daemon runs."""
    with now.daemon() as process:
        now.progress(process)
        for _ in range(now.chance.randint(1, 2)):
            now.daemons.configure(batch_rows=now.chance.choice((7, 50, 400)))
            process.send_signal(signal.SIGHUP)
            now.progress(process)


def store_network(now: Round) -> None:
    """Requests to the store or the catalog fail, are cut, or are answered half or late."""
    with now.daemon() as process:
        now.progress(process)
        for _ in range(now.chance.randint(1, 4)):
            now.place.disturb(now.chance.randrange)
            now.progress(process)
    now.place.heal()


def sink_network(now: Round) -> None:
    """The network to the sink's server is slow, cuts, refuses, holds back or loses answers."""
    link = now.target.peer.link
    with now.daemon() as process:
        now.progress(process)
        try:
            for _ in range(now.chance.randint(1, 3)):
                link.disturb(now.chance.choice(TROUBLES))
                now.progress(process)
        finally:
            link.heal()
        now.progress(process)


def server_lies(now: Round) -> None:
    """The sink's server carries out what it is asked for, and answers what no server should."""
    link, server = now.target.peer.link, now.target.server
    lies = passing_lies("http" if server in ("aws", "clickhouse", "search") else server)
    with now.daemon() as process:
        now.progress(process)
        try:
            for _ in range(now.chance.randint(1, 3)):
                link.answer_by(lies[now.chance.choice(list(lies))])
                now.progress(process)
        finally:
            link.heal()
        now.progress(process)


def server_killed(now: Round) -> None:
    """The sink's server is killed, is away for a while, and comes back with its data."""
    with now.daemon() as process, _away(now, graceful=False):
        now.progress(process)


def server_restarted(now: Round) -> None:
    """The sink's server is ended in order, and comes back with its data."""
    with now.daemon() as process, _away(now, graceful=True):
        now.progress(process)


@contextmanager
def _away(now: Round, *, graceful: bool) -> Iterator[None]:
    peer = now.target.peer
    peer.end() if graceful else peer.kill()
    try:
        time.sleep(now.chance.uniform(0.0, 3.0))
    finally:
        peer.start()
    yield


def server_upgraded(now: Round) -> None:
    """The sink's server is ended in order, and a newer version goes on with its data."""
    with now.daemon() as process:
        now.progress(process)
        now.target.peer.upgrade()
        now.progress(process)


def server_stands_still(now: Round) -> None:
    """The sink's server takes connections and says nothing for a while."""
    with now.daemon() as process:
        now.progress(process)
        with now.target.peer.still():
            time.sleep(now.chance.uniform(0.5, 10.0))
        now.progress(process)


def _older(now: Round) -> bool:
    return _has_peer(now) and now.target.peer.older


def _always(_: Round) -> bool:
    return True


def _small_disk(now: Round) -> bool:
    return now.disk != now.folder


def _has_clock(_: Round) -> bool:
    return bool(fake_clock())


def _remote(now: Round) -> bool:
    return now.place.remote


def _has_peer(now: Round) -> bool:
    return now.target.server != ""


def _lasting(now: Round) -> bool:
    return _has_peer(now) and now.target.peer.lasting


#: Each fault, and when it is possible.
_FAULTS: Mapping[str, tuple[Callable[[Round], None], Callable[[Round], bool]]] = {
    "kill": (kill, _always),
    "terminate": (terminate, _always),
    "stand still": (stand_still, _always),
    "two daemons": (two_daemons, _always),
    "standing twin": (standing_twin, _always),
    "few descriptors": (few_descriptors, _always),
    "largest file": (largest_file, _always),
    "full disk": (full_disk, _small_disk),
    "clock": (clock, _has_clock),
    "reload": (reload, _always),
    "store network": (store_network, _remote),
    "sink network": (sink_network, _has_peer),
    "server lies": (server_lies, _has_peer),
    "server killed": (server_killed, _lasting),
    "server restarted": (server_restarted, _lasting),
    "server upgraded": (server_upgraded, _older),
    "server stands still": (server_stands_still, _has_peer),
}
FAULTS = tuple(_FAULTS)


def fault_of(name: str, now: Round) -> tuple[str, Callable[[Round], None]]:
    """A fault, or a kill where it is not possible."""
    run, possible = _FAULTS[name]
    return (name, run) if possible(now) else ("kill", kill)
