"""What sets a copy right is killed again and again: a repair, a resnapshot, a feed that goes back,
a history, and rows that were parked. In the end nothing is lost, and each row is there once.

``TAILER_TORTURE_ROUNDS`` is how many kills each has (3; at most 200); ``--randomly-seed`` repeats
the moments.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from subprocess import TimeoutExpired

import anyio
import pyarrow as pa
import pytest

from tailer.cli.main import main
from tailer.config.feeds import load_config
from tailer.daemon.assembly import make_offset_store
from tests.support.copies import Copy, make_copy_of
from tests.support.outcomes import record_outcome
from tests.support.programs import started
from tests.support.sql_targets import SQL_SINKS, SqlTarget, sql_target
from tests.support.waiting import eventually

ROUNDS = min(200, int(os.environ.get("TAILER_TORTURE_ROUNDS", "3")))
#: More than a repair writes in one transaction.
ROWS = 60_000
SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int64())])
PARKED = pa.schema([("id", pa.int64()), ("n", pa.string())])


@dataclass
class Trial:
    """A copy and its table, and the kills so far."""

    copy: Copy
    target: SqlTarget
    chance: random.Random
    kills: int = 0
    longest_s: float = 0.0

    @property
    def name(self) -> str:
        return f"{self.target.prefix}orders"

    def write_version(self) -> None:
        """Change some rows, as a writer does."""
        first = 10 * ROWS + 1000 * self.copy.table.version
        self.copy.table.insert([{"id": first + n, "n": n} for n in range(1000)])

    def damage(self) -> None:
        """Change rows, remove some, and add some that the table does not have."""
        by = self.chance.randrange(7)
        name, ids = self.name, f"SELECT id FROM {self.name}"
        free = f"id % 5 = {by % 5} AND id < 5000000 AND id + 5000000 NOT IN ({ids})"
        for statement in (
            f"UPDATE {name} SET n = -1 WHERE id % 7 = {by}",
            f"DELETE FROM {name} WHERE id % 9 = {by}",
            f"INSERT INTO {name} SELECT id + 5000000, n FROM {name} WHERE {free}",
        ):
            self.target.query(statement)

    def kill(self, *arguments: str) -> bool:
        """Run a command, and kill it on its way; return whether it has ended before."""
        began = time.monotonic()
        with started(*arguments, dev=False) as program:
            within = self.chance.uniform(0.2, self.longest_s or 4.0)
            with suppress(TimeoutExpired):
                assert program.process.wait(within) in (0, 1), str(program)
                self.longest_s = time.monotonic() - began
                return True
            program.process.kill()
        self.kills += 1
        return False

    def order_resnapshot(self, where: str | None) -> None:
        """Save an order beside the offset, as a daemon does."""

        async def save() -> None:
            store = make_offset_store(load_config(self.copy.config), "orders")
            await store.acquire()
            await store.save_orders({"resnapshots": [{"where": where}]})
            await store.release()

        anyio.run(save)

    def has_orders(self) -> bool:
        """Whether an order to read the table again is open."""

        async def look() -> bool:
            store = make_offset_store(load_config(self.copy.config), "orders")
            return bool((await store.load_orders()).get("resnapshots"))

        return anyio.run(look)


def repair(trial: Trial) -> None:
    command = ("verify", str(trial.copy.config), "orders", "--repair")
    while trial.kills < ROUNDS:
        trial.damage()
        while trial.kills < ROUNDS and not trial.kill(*command):
            odd = f"SELECT count(*) FROM {trial.name} WHERE n NOT IN (-1, id % 1000)"
            assert trial.target.query(odd) == [(0,)]
    assert trial.copy.verify("--repair") == 0
    assert trial.copy.verify() == 0


def resnapshot(trial: Trial) -> None:
    command = ("run", str(trial.copy.config))
    trial.longest_s = 2.5
    while trial.kills < ROUNDS:
        trial.damage()
        trial.order_resnapshot(None if trial.chance.random() < 0.7 else "id % 2 >= 0")
        for _ in range(5):
            trial.write_version()
            assert not trial.kill(*command)
        trial.longest_s = trial.chance.choice([1.5, 2.5, 5.0])
    end = trial.copy.table.version + 1
    with started(*command, dev=False) as program:
        program.wait_until(lambda: any("following" in line for line in program.errors))
        eventually(lambda: not trial.has_orders(), why=lambda: program)
        eventually(lambda: f'"version":{end}' in offset_of(trial), why=lambda: offset_of(trial))
        assert program.stop() == 0
    assert trial.copy.verify() == 0


def offset_of(trial: Trial) -> str:
    file = next((trial.copy.config.parent / "state").glob("*.offset.json"))
    return file.read_text().replace(" ", "")


def rewind(trial: Trial) -> None:
    """Also of a history, which goes back in one transaction."""
    copy, keeps = trial.copy, trial.copy.make_sink().traits.keeps_versions
    while trial.kills < ROUNDS:
        trial.write_version()
        copy.deliver(copy.table.version)
        to = str(trial.chance.randrange(1, copy.table.version))
        while trial.kills < ROUNDS:
            if trial.kill("offsets", "rewind", str(copy.config), "orders", "--to", to):
                break
            if keeps:
                assert copy.verify() == 0
                break
            assert copy.verify("--repair") == 0
            copy.deliver(copy.table.version)
        copy.deliver(copy.table.version)
        assert copy.verify() == 0


def history(trial: Trial) -> None:
    """A feed is killed at its versions, and then as it goes back."""
    trial.longest_s = 1.5
    while trial.kills < ROUNDS / 2:
        for _ in range(3):
            trial.write_version()
        trial.kill("run", "--once", str(trial.copy.config))
    trial.longest_s = 0.0
    trial.copy.deliver(trial.copy.table.version)
    rewind(trial)
    assert trial.copy.verify("--from", "1", "--to", str(trial.copy.table.version)) == 0


def replay(trial: Trial) -> None:
    """A row may come again with the id that it had, one for each kill."""
    copy, query, count = trial.copy, trial.target.query, 0
    bad, good = "n::bigint AS m", "try_cast(n AS bigint) AS m"
    text = copy.config.read_text()
    while trial.kills < ROUNDS:
        copy.config.write_text(text.replace(good, bad))
        copy.table.insert(
            [{"id": n, "n": "x" if n % 3 else "1"} for n in range(count, count + 300)]
        )
        count += 300
        copy.deliver(copy.table.version)
        copy.config.write_text(text.replace(bad, good))
        while trial.kills < ROUNDS and not trial.kill(
            "parked", "replay", str(copy.config), "orders"
        ):
            pass
    assert main(["parked", "replay", str(copy.config), "orders"]) == 0
    ((events,), (ids,)) = (
        query(f'SELECT count({what}"_event_id") FROM {trial.name}')[0] for what in ("", "DISTINCT ")
    )
    assert ids == count
    assert events <= count + trial.kills
    assert query(f"SELECT count(DISTINCT id) FROM {trial.name}") == [(count,)]


WORK: dict[str, Callable[[Trial], None]] = {
    "repair": repair, "resnapshot": resnapshot, "rewind": rewind, "history": history,
    "replay": replay,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.timeout(300 + 20 * ROUNDS)
@pytest.mark.parametrize("work", WORK)
@pytest.mark.parametrize("kind", SQL_SINKS)
def test_a_copy_is_right_in_the_end(
    kind: str,
    work: str,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    seed = random.randrange(2**32)
    target = sql_target(kind, tmp_path, request)
    if work == "replay":
        options, schema = target.toml(mode="log"), PARKED
        feed = 'from = "earliest"\non_reject = "park"\nselect = ["id", "n::bigint AS m"]'
    else:
        options = target.toml(key=["id"], mode="history" if work == "history" else "mirror")
        feed, schema = 'from = "snapshot"', SCHEMA
    copy = make_copy_of(tmp_path, options, schema, feed)
    text = copy.config.read_text().replace("[daemon]\n", '[daemon]\nstate = "state"\n')
    copy.config.write_text(text)
    copy.table.create()
    if work != "replay":
        copy.table.insert([{"id": n, "n": n % 1000} for n in range(ROWS)])
    copy.deliver(copy.table.version)
    trial = Trial(copy, target, random.Random(seed))
    WORK[work](trial)
    record_outcome(capsys, f"{kind} {work}", seed=seed, kills=trial.kills, wrong=0)
