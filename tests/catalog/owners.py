"""Two daemons of one feed of a catalog-managed table, its state under a lease: the owner is killed
or stopped past its lease, in turns, and the other one goes on.

    python -m tests.catalog.owners --rounds 30 [--real] [--azure]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.catalog.histories import History, add_server_options, tables_of
from tests.catalog.writer import ManagedTable
from tests.s3.fixture import ACCOUNT, Bucket, run_server
from tests.support.forking import Process, start
from tests.support.programs import whole_lines
from tests.support.waiting import PATIENCE_S, eventually

LEASE_S = 2.0
CONFIG = """\
[daemon]
http = ""
state = "{state}"
lease_s = {lease_s}
[store.s3]
endpoint_url = "{url}"
region = "{region}"
[feeds.orders]
table = "{table}"
from = "earliest"
poll_max_s = 0.05
[feeds.orders.sink]
type = "jsonl"
path = "rows.jsonl"
ids = "all"
"""


@dataclass
class Figures:
    """What was done, and how many lines came again."""

    kills: int = 0
    stops: int = 0
    versions: int = 0
    epochs: int = 0
    again: int = 0


class Owner:
    """One of the two daemons, with a file of its own that it writes to."""

    def __init__(self, name: str, folder: Path, table: ManagedTable, bucket: Bucket) -> None:
        home = folder / name
        home.mkdir()
        # The same options for both: a path is from the configuration's folder.
        self.rows, self.errors = home / "rows.jsonl", home / "errors"
        self.config = home / "tailer.toml"
        self.config.write_text(CONFIG.format(
            state=bucket.address("state"), lease_s=LEASE_S, url=bucket.url,
            region=bucket.options["region"], table=table.address,
        ))  # fmt: skip
        self.process: Process | None = None

    def run(self) -> None:
        """Start it, unless it runs."""
        if self.process is None or self.process.poll() is not None:
            with self.errors.open("ab") as file:
                self.process = start("tailer", "run", self.config, stderr=file.fileno())

    def strike(self, number: int) -> None:
        """Send it a signal."""
        assert self.process is not None
        self.process.send_signal(number)

    def wait_for_end(self) -> None:
        """Wait until it ends by itself: another one owns its feed."""
        assert self.process is not None
        assert self.process.wait(PATIENCE_S) == 1

    @property
    def events(self) -> list[dict[str, Any]]:
        """What it has written."""
        return [json.loads(line) for line in whole_lines(self.rows)]


class Owners:
    """The two of them, and the state that they share."""

    def __init__(self, folder: Path, table: ManagedTable, bucket: Bucket) -> None:
        self.both = [Owner(name, folder, table, bucket) for name in ("first", "second")]
        self.bucket = bucket

    @property
    def epoch(self) -> int:
        """How often the feed has had another owner."""
        try:
            return int(json.loads(self.bucket.read("state/orders.offset.json"))["epoch"])
        except FileNotFoundError:
            return 0

    def wait_for(self, version: int) -> None:
        """Wait until a version has been written."""
        eventually(lambda: version in self.newest(), why=self._said)

    def newest(self) -> list[int]:
        """The newest version that each has written."""
        return [
            max((event["_commit_version"] for event in one.events), default=-1) for one in self.both
        ]

    def owner(self) -> Owner:
        """The one that has written last."""
        first, second = self.newest()
        return self.both[second > first]

    def wait_for_another(self, epoch: int) -> None:
        """Wait until the feed has had more owners than ``epoch``."""
        eventually(lambda: self.epoch > epoch, why=self._said)

    def _said(self) -> str:
        said = "\n".join(one.errors.read_text()[-2000:] for one in self.both)
        return f"epoch {self.epoch}, versions {self.newest()}\n{said}"


@contextmanager
def _running(owners: Owners) -> Iterator[None]:
    try:
        for one in owners.both:
            one.run()
        yield
    finally:
        for one in owners.both:
            if one.process is not None:
                one.process.kill()
                one.process.wait()


def owner_rounds(
    table: ManagedTable, folder: Path, bucket: Bucket, rounds: int, seed: int
) -> Figures:
    """Strike the owner again and again while the table's writer goes on. Raises AssertionError for
    a version that is missed, doubled or early, and for an event that came back with other bytes."""
    history, moments = History(table.create(), random.Random(seed)), random.Random(seed + 1)
    figures, owners = Figures(), Owners(folder, table, bucket)
    with _running(owners):
        for number in range(rounds):
            _steps(history, 1)
            owners.wait_for(history.end())
            owner, epoch = owners.owner(), owners.epoch
            _steps(history, moments.randrange(3))
            time.sleep(moments.uniform(0.0, 0.1))  # it may be in the middle of a version
            is_kill = number % 2 == 0
            owner.strike(signal.SIGKILL if is_kill else signal.SIGSTOP)
            _steps(history, 1)
            owners.wait_for_another(epoch)
            owners.wait_for(history.end())
            if is_kill:
                figures.kills += 1
            else:
                figures.stops += 1
                owner.strike(signal.SIGCONT)
                _steps(history, 1)  # while the former owner finds out
                owner.wait_for_end()
            owner.run()
        owners.wait_for(history.end())
        figures.epochs = owners.epoch
    figures.versions = history.end()
    figures.again = _check(owners, history)
    return figures


def _steps(history: History, versions: int) -> None:
    """Do what writers do until there are so many versions more."""
    end = history.end() + versions
    while history.end() < end:
        history.step()


def _check(owners: Owners, history: History) -> int:
    """Check what both have written; returns how many lines came again."""
    lines = [line for one in owners.both for line in whole_lines(one.rows)]
    seen: dict[str, bytes] = {}
    for line in lines:
        assert seen.setdefault(json.loads(line)["_event_id"], line) == line
    found = sorted(
        (event["_commit_version"], event["v"]) for event in map(json.loads, seen.values())
    )
    assert found == sorted(history.texts.items())[: history.end()]
    return len(lines) - len(seen)


def main() -> None:
    """Run as many rounds as were asked for, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    add_server_options(parser)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        table = tables_of(arguments, stack, folder)("orders")
        (folder / "s3").mkdir()
        bucket = stack.enter_context(run_server(folder / "s3")).bucket("state")
        os.environ.update(ACCOUNT)
        print(owner_rounds(table, folder, bucket, arguments.rounds, arguments.seed))


if __name__ == "__main__":
    main()
