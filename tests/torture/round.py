"""One round: a writer commits, daemons are disturbed, and at the end the target is the table."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.integration.killing import writing
from tests.support.components import free_port
from tests.support.forking import Process, start
from tests.support.waiting import PATIENCE_S, eventually
from tests.torture.faults import fault_of
from tests.torture.places import Place
from tests.torture.recipe import Recipe
from tests.torture.servers import Servers, has_older_kafka
from tests.torture.target import Setting, Target
from tests.torture.targets import target_of
from tests.torture.writers.base import RoundWriter
from tests.torture.writers.catalog import CatalogWriter
from tests.torture.writers.delta_rs import DeltaRsWriter
from tests.torture.writers.ours import OwnWriter
from tests.torture.writers.spark import SparkWriter

_FINISH_S = 4 * PATIENCE_S
#: A round has so many versions, unless its writer needs longer.
_VERSIONS_MIN, _SLOW_S = 12, 120.0
_DISK = "128m"
_WRITERS: dict[str, type[RoundWriter]] = {
    "catalog": CatalogWriter, "deltalake": DeltaRsWriter, "ours": OwnWriter, "spark": SparkWriter,
}  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """What a round saw: versions of the table, rows in it, events in the target, what happened."""

    versions: int
    rows: int
    events: int
    proof: str
    faults: tuple[str, ...]
    operations: tuple[str, ...]
    table: tuple[str, ...]
    seconds: float


class Daemons:
    """`tailer run`, twice where wanted: the second has another state if the target fences."""

    def __init__(
        self, folder: Path, errors: Path, place: Place, target: Target, start_at: str
    ) -> None:
        self.folder = folder
        self.start = start_at
        self.place = place
        self.target = target
        self.errors = errors
        self.ports = {"one": free_port(), "two": free_port()}
        self.sink = target.section()
        self.configure()

    def configure(self, batch_rows: int = 50) -> None:
        """Write the configurations."""
        for name, port in self.ports.items():
            state = f"{self.place.state}/{name if self.target.fences else 'one'}"
            (self.folder / f"{name}.toml").write_text(
                f'[daemon]\nhttp = "127.0.0.1:{port}"\nstate = {json.dumps(state)}\n'
                f"lease_s = 5\n{self.place.section}\n"
                f"[feeds.orders]\ntable = {json.dumps(self.place.table)}\n"
                f'from = "{self.start}"\n'
                f"batch_rows_max = {batch_rows}\nretry_max_s = 1\n"
                f"[feeds.orders.sink]\n{self.sink}\n"
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
                status: dict[str, Any] = json.loads(answer.read())
                return status
        return None

    def version(self, name: str = "one") -> int | None:
        """The version of the daemon's offset, if it is known."""
        status = self.status(name)
        return status["offset"]["version"] if status and status["offset"] else None

    def tail(self) -> str:
        """The last that the daemons have said."""
        return self.errors.read_text(errors="replace")[-3000:] if self.errors.exists() else ""


class Round:
    """The parts of one round, which its faults use. ``disk`` holds state and local targets; it may
    be a small one of its own."""

    def __init__(
        self, recipe: Recipe, place: Place, folder: Path, servers: Servers, disk: Path | None = None
    ) -> None:
        self.recipe = recipe
        self.place = place
        self.folder = folder
        self.disk = disk or folder
        self.chance = random.Random(f"{recipe.seed} moments")
        self.writer = _WRITERS[recipe.writer](recipe, place)
        chance = random.Random(f"{recipe.seed} target")
        setting = Setting(recipe.sink, recipe.format, self.disk, chance)
        self.target = target_of(setting, servers)
        errors = folder / "stderr.txt"
        self.daemons = Daemons(self.disk, errors, place, self.target, recipe.start)
        self.faults: list[str] = []

    def daemon(
        self, name: str = "one", within: Sequence[str] = ()
    ) -> AbstractContextManager[Process]:
        """A daemon."""
        return self.daemons.running(name, within)

    def run(self) -> Outcome:
        """Run it; an AssertionError tells what was lost, doubled or wrong."""
        begun = time.monotonic()
        with writing(self.writer) as writer:
            for name in self.recipe.faults:
                done, fault = fault_of(name, self)
                self.faults.append(done)
                fault(self)
                assert writer.error is None, writer.error
            self.place.heal()
            self._let_write()
        writer.finish()
        self._finish()
        seen = self.target.seen(writer.rename)
        found, expected = plain(seen.rows), plain(writer.rows())
        lost, more = set(expected) - set(found), set(found) - set(expected)
        assert found == expected, (
            f"{len(found)} rows and not {len(expected)}: without {sorted(lost)[:3]}, "
            f"with {sorted(more)[:3]}"
        )
        return Outcome(
            writer.version() + 1, len(expected), seen.events, self.target.proof,
            tuple(self.faults), tuple(writer.done.elements()), tuple(writer.table_traits),
            time.monotonic() - begun,
        )  # fmt: skip

    def progress(self, process: Process, name: str = "one") -> None:
        """Wait until a daemon has come some versions further, or a while; a daemon may end by
        itself where it has no descriptor or no room."""
        writer = self.writer
        until = time.monotonic() + self.chance.uniform(1.0, 6.0)
        wanted = writer.read_version + self.chance.randint(1, 4)
        while time.monotonic() < until and process.poll() is None:
            writer.read_version = max(writer.read_version, self.daemons.version(name) or 0)
            if writer.read_version >= wanted:
                return
            time.sleep(0.02)

    def _let_write(self) -> None:
        """Have a daemon read on until a slow writer has written some versions."""
        if self.writer.newest >= _VERSIONS_MIN:
            return
        until = time.monotonic() + _SLOW_S
        with self.daemon() as process:
            while self.writer.newest < _VERSIONS_MIN and time.monotonic() < until:
                assert self.writer.error is None, self.writer.error
                self.progress(process)

    def _finish(self) -> None:
        """Read to the table's end, undisturbed, and end on SIGTERM."""
        end = self.writer.version() + 1
        with self.daemon() as process:

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


def plain(rows: Iterable[dict[str, Any]]) -> list[str]:
    """Rows to be compared: a column that a row lacks is null, and our own are left out."""
    kept = [
        {name: row[name] for name in sorted(row) if row[name] is not None and name[0] != "_"}
        for row in rows
    ]
    return [json.dumps(row) for row in sorted(kept, key=lambda row: row["id"])]


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A small disk in a folder; the folder itself, where nothing can be mounted."""
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        yield folder
        return
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)


def run_round(recipe: Recipe, place: Place, folder: Path, servers: Servers) -> Outcome:
    """Run one round in a new folder."""
    if recipe.sink == "kafka" and "server upgraded" in recipe.faults and has_older_kafka():
        servers.older_kafka()
    if "full disk" not in recipe.faults:
        return Round(recipe, place, folder, servers).run()
    with small_disk(folder) as disk:
        return Round(recipe, place, folder, servers, disk).run()
