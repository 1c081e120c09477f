"""Random histories of a catalog-managed table, and of readers who follow it meanwhile.

    python -m tests.catalog.histories --count 500 --kills 100 [--real] [--azure]

The writer stages, asks the catalog to ratify, loses the answers and repeats itself, loses to
another writer, publishes late, tells the catalog late or never, and cleans up. Each version's one
row has a text that no other staged commit has, so a reader that took an unratified one is found by
it. ``--kills`` kills a daemon as often while it follows a table.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, aclosing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import anyio

from tailer.changes import Offset
from tailer.errors import TransientError
from tailer.feed.options import FeedOptions
from tailer.feed.read import read_changes
from tailer.log.follow import FollowOptions
from tailer.log.table import TableLog
from tailer.storage import open_store
from tests.catalog.lakes import keep_on_azure
from tests.catalog.real import running_real_server
from tests.catalog.server import TOKEN, serving_catalog
from tests.catalog.writer import ManagedTable
from tests.clouds.servers import run_cloud
from tests.support.outcomes import record
from tests.support.programs import running_daemon
from tests.support.waiting import eventually

QUICK = FeedOptions(follow=FollowOptions(poll_min_s=0.002, poll_max_s=0.01))


@dataclass
class History:
    """One writer's life. ``texts`` has what was sent to be ratified, by version, before it was."""

    table: ManagedTable
    chance: random.Random
    texts: dict[int, str] = field(default_factory=dict)

    def step(self) -> None:
        """Do one of the things that writers do."""
        unpublished = self.table.latest - self.table.published
        if unpublished and self.chance.random() < 0.35 + 0.05 * unpublished:
            self._publish()
        else:
            self._commit()

    def _commit(self) -> None:
        table, chance = self.table, self.chance
        version = table.latest + 1
        loser = table.stage(version, f"lost-{version}") if chance.random() < 0.4 else None
        text = f"v{version}-{chance.getrandbits(32)}"
        staged = table.stage(version, text)
        self.texts[version] = text
        published = table.published if chance.random() < 0.5 else None
        answers = [table.ratify(staged, published)]
        if chance.random() < 0.3:  # it has lost the answer, and repeats itself
            answers.append(table.ratify(staged))
        assert answers[0] == 200, answers
        if loser is not None:
            assert table.ratify(loser) == 409
            table.latest, table.staged[version] = version, staged
        if chance.random() < 0.2:
            table.stage(version + 1, f"too-early-{version + 1}")

    def _publish(self) -> None:
        table, chance = self.table, self.chance
        published = table.publish(tell=False)
        if chance.random() < 0.6:
            table.backfilled(published)
        if chance.random() < 0.3:
            table.clean(published)

    def end(self) -> int:
        """Return the newest version."""
        return self.table.latest


async def _follow(history: History, found: list[tuple[int, str]], seed: int, last: int) -> None:
    """Take the rows of all versions up to ``last``, beginning anew at the offset now and then."""
    chance = random.Random(seed)
    at = Offset(1)
    while len(found) < last:
        store = open_store(history.table.address)
        try:
            async with aclosing(read_changes(TableLog(store), at, last, QUICK)) as batches:
                async for batch in batches:
                    for row in batch.rows.to_pylist():
                        version = row["_commit_version"]
                        assert version in history.texts, f"version {version} came too early"
                        found.append((version, row["v"]))
                    at = batch.next_offset
                    if chance.random() < 0.2:
                        break
        except TransientError:
            await anyio.sleep(0.01)  # as a feed does
        finally:
            await store.aclose()


async def run_history(table: ManagedTable, seed: int, versions: int = 10) -> None:
    """Run a history with two readers. Raises AssertionError for a version that is missed, doubled,
    early or another's."""
    history = History(table.create(), random.Random(seed))
    found: tuple[list[tuple[int, str]], list[tuple[int, str]]] = ([], [])
    with anyio.fail_after(300):
        async with anyio.create_task_group() as readers:
            for number, rows in enumerate(found):
                readers.start_soon(_follow, history, rows, seed + number, versions)
            while history.end() < versions:
                await anyio.to_thread.run_sync(history.step)
    expected = sorted(history.texts.items())[:versions]
    for rows in found:
        assert rows == expected, f"seed {seed}: {rows} are not {expected}"


def kill_rounds(table: ManagedTable, folder: Path, kills: int, seed: int) -> int:
    """Kill a daemon again and again while it follows a table; returns the number of versions.
    Raises AssertionError for one that was missed, or an event that came back with other bytes."""
    # How long one waits must not decide what the writer does.
    history, chance = History(table.create(), random.Random(seed)), random.Random(seed + 1)
    config, errors = folder / "tailer.toml", folder / "errors"
    config.write_text(
        f'[daemon]\nhttp = ""\n[feeds.one]\ntable = "{table.address}"\nfrom = "earliest"\n'
        'poll_max_s = 0.05\n[feeds.one.sink]\ntype = "jsonl"\npath = "rows.jsonl"\nids = "all"\n'
    )
    rows = folder / "rows.jsonl"
    for _ in range(kills):
        with running_daemon(config, errors) as daemon:
            lines = _lines(rows)
            for _ in range(history.chance.randrange(1, 5)):
                history.step()
            end = time.monotonic() + 60
            while _lines(rows) <= lines and time.monotonic() < end and chance.random() < 0.98:
                time.sleep(0.02)
            daemon.kill()
    with running_daemon(config, errors):
        last = f'"_commit_version":{history.end()}'
        eventually(lambda: rows.exists() and last in rows.read_text())
    seen: dict[str, str] = {}
    for line in rows.read_text().splitlines():
        event = json.loads(line)
        assert seen.setdefault(event["_event_id"], line) == line
    found = sorted((e["_commit_version"], e["v"]) for e in map(json.loads, seen.values()))
    expected = sorted(history.texts.items())[: history.end()]
    assert found == expected
    return history.end()


def _lines(path: Path) -> int:
    return len(path.read_bytes().splitlines()) if path.exists() else 0


def add_server_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which catalog and which storage there are."""
    parser.add_argument("--real", action="store_true", help="on the server of make catalog-server")
    parser.add_argument("--azure", action="store_true", help="with the tables on Azurite")


def tables_of(
    arguments: argparse.Namespace, stack: ExitStack, folder: Path
) -> Callable[[str], ManagedTable]:
    """Start the servers of the options, to which the environment then leads; what makes the tables,
    by their names."""
    own = None if arguments.real else stack.enter_context(serving_catalog(folder))
    endpoint = own.endpoint if own else stack.enter_context(running_real_server(folder))
    os.environ.update(DATABRICKS_HOST=endpoint, DATABRICKS_TOKEN=TOKEN)
    if not arguments.azure:
        return partial(ManagedTable, endpoint, TOKEN)
    container = stack.enter_context(run_cloud("azure")).container()
    os.environ["AZURE_STORAGE_ENDPOINT"] = container.url
    return keep_on_azure(container, endpoint, own).table


def main() -> None:
    """Run as many as were asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--kills", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    add_server_options(parser)
    arguments = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        table_named = tables_of(arguments, stack, folder)
        for seed in range(arguments.seed, arguments.seed + arguments.count):
            anyio.run(partial(run_history, table_named(f"t{seed}"), seed))
        print(f"{arguments.count} histories: no version missed, doubled or early")
        if arguments.kills:
            versions = kill_rounds(table_named("killed"), folder, arguments.kills, arguments.seed)
            print(f"{arguments.kills} kills: {versions} versions, none missed, none changed")
        command = (
            f"python -m tests.catalog.histories --count {arguments.count} --seed {arguments.seed}"
        )
        if arguments.kills:
            command += f" --kills {arguments.kills}"
        record(
            "catalog, real server" if arguments.real else "catalog",
            f"{command} --real" if arguments.real else command,
            seed=arguments.seed, histories=arguments.count, faults=arguments.kills, broken=0,
        )  # fmt: skip


if __name__ == "__main__":
    main()
