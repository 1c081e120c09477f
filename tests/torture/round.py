"""One round: a writer commits, daemons are disturbed, and at the end the target is the table."""

from __future__ import annotations

import json
import random
import signal
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.killing import writing
from tests.support.components import free_port
from tests.support.forking import Process, start
from tests.support.waiting import PATIENCE_S, eventually
from tests.torture.places import Place
from tests.torture.recipe import Recipe
from tests.torture.targets import Target, plain, target_of
from tests.torture.writer import TableWriter

__all__ = ["Outcome", "run_round"]

#: Few descriptors, and a largest file: with both a daemon can begin, and soon can't go on.
_DESCRIPTORS = ("prlimit", "--nofile=64:64")
_LARGEST_FILE = ("prlimit", "--fsize=60000:60000")
_FINISH_S = 4 * PATIENCE_S


@dataclass(frozen=True)
class Outcome:
    """What a round saw: versions of the table, rows in it, disturbances, seconds."""

    versions: int
    rows: int
    seen: tuple[str, ...]
    seconds: float


class Daemons:
    """`tailer run`, twice where wanted: the second has another state if the target fences."""

    def __init__(self, folder: Path, place: Place, target: Target) -> None:
        self.folder = folder
        self.errors = folder / "stderr.txt"
        self.ports = {"one": free_port(), "two": free_port()}
        for name, port in self.ports.items():
            state = f"{place.state}/{name if target.fences else 'one'}"
            (folder / f"{name}.toml").write_text(
                f'[daemon]\nhttp = "127.0.0.1:{port}"\nstate = {json.dumps(state)}\n'
                f"lease_s = 5\n{place.section}\n"
                f'[feeds.orders]\ntable = {json.dumps(place.table)}\nfrom = "snapshot"\n'
                f"batch_rows_max = 50\nretry_max_s = 1\n"
                f"[feeds.orders.sink]\n{target.options}\n"
            )

    @contextmanager
    def running(self, name: str = "one", within: Sequence[str] = ()) -> Iterator[Process]:
        """A daemon, killed at the end of the block at the latest."""
        with self.errors.open("ab") as file:
            process = start(
                "tailer", "run", self.folder / f"{name}.toml", within=within, stderr=file.fileno()
            )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def status(self, name: str = "one") -> dict[str, Any] | None:
        """What the daemon says of its feed; None if it does not answer."""
        with suppress(OSError, ValueError):
            url = f"http://127.0.0.1:{self.ports[name]}/api/v1/feeds/orders"
            with urllib.request.urlopen(url, timeout=5) as answer:
                found: dict[str, Any] = json.loads(answer.read())
                return found
        return None

    def version(self, name: str = "one") -> int | None:
        """The version of the daemon's offset, if it is known."""
        status = self.status(name)
        return status["offset"]["version"] if status and status["offset"] else None

    def tail(self) -> str:
        """The last that the daemons have said."""
        return self.errors.read_text(errors="replace")[-3000:] if self.errors.exists() else ""


class Round:
    """The parts of one round, and its faults."""

    def __init__(self, recipe: Recipe, place: Place, folder: Path) -> None:
        self.recipe = recipe
        self.place = place
        self.chance = random.Random(recipe.seed + 1)
        self.target = target_of(recipe.sink, folder)
        self.daemons = Daemons(folder, place, self.target)
        self.seen: list[str] = []

    def run(self) -> Outcome:
        """Run it; an AssertionError tells what was lost, doubled or wrong."""
        begun = time.monotonic()
        with writing(TableWriter(self.recipe, self.place)) as writer:
            for fault in self.recipe.faults:
                self._disturb(fault, writer)
                assert writer.error is None, writer.error
            self.place.heal()
        writer.finish()
        self._finish(writer)
        found, expected = plain(self.target.rows()), plain(writer.rows())
        lost, more = set(expected) - set(found), set(found) - set(expected)
        assert found == expected, (
            f"{len(found)} rows and not {len(expected)}: without {sorted(lost)[:3]}, "
            f"with {sorted(more)[:3]}"
        )
        seconds = time.monotonic() - begun
        return Outcome(writer.table.version() + 1, len(expected), tuple(self.seen), seconds)

    def _disturb(self, fault: str, writer: TableWriter) -> None:
        self.seen.append(fault)
        within = {"few descriptors": _DESCRIPTORS, "no room": _LARGEST_FILE}.get(fault, ())
        with self.daemons.running(within=within) as process:
            self._progress(writer, process)
            match fault:
                case "terminate":
                    process.send_signal(signal.SIGTERM)
                    assert process.wait(PATIENCE_S) == 0, self.daemons.tail()
                case "stand still":
                    process.send_signal(signal.SIGSTOP)
                    time.sleep(self.chance.uniform(0.5, 8.0))  # also longer than its lease
                    process.send_signal(signal.SIGCONT)
                    self._progress(writer, process)
                case "two daemons":
                    with self.daemons.running("two") as other:
                        self._progress(writer, other, "two")
                        self.chance.choice((process, other)).kill()
                        self._progress(writer, other, "two")
                case "network":
                    for _ in range(self.chance.randint(1, 4)):
                        self.seen.append(self.place.disturb(self.chance.randrange))
                        self._progress(writer, process)
            time.sleep(self.chance.uniform(0.0, 0.05))
        self.place.heal()

    def _progress(self, writer: TableWriter, process: Process, name: str = "one") -> None:
        """Wait until a daemon has come some versions further, or a while; a daemon may end by
        itself where it has no descriptor or no room."""
        until = time.monotonic() + self.chance.uniform(1.0, 6.0)
        wanted = writer.read_version + self.chance.randint(1, 4)
        while time.monotonic() < until and process.poll() is None:
            writer.read_version = max(writer.read_version, self.daemons.version(name) or 0)
            if writer.read_version >= wanted:
                return
            time.sleep(0.02)

    def _finish(self, writer: TableWriter) -> None:
        """Read to the table's end, undisturbed, and end on SIGTERM."""
        end = writer.table.version() + 1
        with self.daemons.running() as process:

            def at_end() -> bool:
                assert process.poll() is None, self.daemons.tail()
                status = self.daemons.status()
                if status is None or status["state"] != "following" or not status["offset"]:
                    assert status is None or status["state"] != "failed", status["last_error"]
                    return False
                return bool(status["offset"]["version"] >= end)

            why = lambda: f"{self.daemons.status()} is not {end}\n{self.daemons.tail()}"  # noqa: E731
            eventually(at_end, _FINISH_S, why, pause_s=0.1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_S) == 0, self.daemons.tail()


def run_round(recipe: Recipe, place: Place, folder: Path) -> Outcome:
    """Run one round in a new folder."""
    return Round(recipe, place, folder).run()
