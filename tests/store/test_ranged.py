"""A file on a server, read by ranges: what is fetched, in which order, and how much is kept."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import anyio
import anyio.to_thread
import pytest

from tailer.errors import TransientError
from tailer.store.budget import Budget
from tailer.store.ranged import RangedReader
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.anyio

KIB, MIB = 1024, 1024 * 1024
DATA = random.Random(1).randbytes(24 * MIB)


def in_parts(data: bytes) -> Sequence[bytes]:
    """Data as a connection gives it, some empty parts among it."""
    sizes = random.Random(len(data))
    parts, at = [b""], 0
    while at < len(data):
        parts.append(data[at : at + sizes.randint(0, 256 * KIB)])
        at += len(parts[-1])
    return parts


class Server:
    """The file's server, which notes the ranges that are asked for and answers when it may."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data = data
        self.asked: list[tuple[int, int]] = []
        self.answers = asyncio.Event()
        self.answers.set()

    async def fetch(self, start: int, end: int) -> Sequence[bytes]:
        self.asked.append((start, end))
        await self.answers.wait()
        return in_parts(self.data[start:end])

    def reader(self, bytes_max: int, budget: Budget | None, tail: int = 10) -> RangedReader:
        return RangedReader(
            self.fetch, len(self.data), self.data[len(self.data) - tail :], bytes_max, budget
        )


async def in_thread(work: Callable[..., Any], *arguments: Any) -> Any:
    return await anyio.to_thread.run_sync(work, *arguments)


def check(reader: RangedReader, start: int, end: int) -> None:
    reader.seek(start)
    assert reader.read(end - start) == DATA[start:end]


async def test_what_was_announced_comes_before_it_is_read() -> None:
    server, budget = Server(), Budget(64 * MIB)
    reader = server.reader(32 * MIB, budget)
    server.answers.clear()
    await in_thread(reader.will_read, [[(0, 6 * MIB), (7 * MIB, 9 * MIB)], [(9 * MIB, 20 * MIB)]])
    wanted = [(0, 9 * MIB)]
    await eventually_async(lambda: server.asked == wanted, why="the first row group is asked for")
    assert budget.taken == 9 * MIB
    server.answers.set()
    await in_thread(check, reader, 0, MIB)
    await eventually_async(lambda: len(server.asked) > 1, why="the second follows")
    for start in range(0, 20 * MIB, MIB):
        await in_thread(check, reader, start, start + MIB)
    assert sum(end - start for start, end in server.asked) == 20 * MIB, "each byte once"
    reader.close()
    assert budget.taken == 0


async def test_a_read_that_nobody_announced_is_answered_too() -> None:
    server = Server()
    reader = server.reader(32 * MIB, Budget(64 * MIB))
    await in_thread(check, reader, 5, 100)
    await in_thread(check, reader, MIB + 5, MIB + 10)
    await in_thread(check, reader, 3 * MIB, 12 * MIB)
    assert server.asked == [
        (5, MIB + 5), (MIB + 5, 3 * MIB + 5), (3 * MIB + 5, 12 * MIB)
    ], "twice as much where it goes on"  # fmt: skip
    await in_thread(check, reader, 5, 100)
    assert len(server.asked) == 3, "it was kept"


async def test_without_a_budget_nothing_is_fetched_before_it_is_read() -> None:
    server = Server()
    for budget in (None, Budget(0)):
        server.asked.clear()
        reader = server.reader(32 * MIB, budget)
        await in_thread(reader.will_read, [[(0, 4 * MIB)], [(4 * MIB, 5 * MIB)]])
        await in_thread(check, reader, 0, 10)
        assert server.asked == [(0, 4 * MIB)]


async def test_an_error_ahead_is_raised_where_its_bytes_are_read() -> None:
    async def fetch(start: int, end: int) -> Sequence[bytes]:
        if start >= MIB:
            raise TransientError("replaced")
        return [DATA[start:end]]

    budget = Budget(64 * MIB)
    reader = RangedReader(fetch, len(DATA), DATA[-10:], 32 * MIB, budget)
    await in_thread(reader.will_read, [[(0, MIB)], [(MIB, 2 * MIB)]])
    await in_thread(check, reader, 0, MIB)
    with pytest.raises(TransientError, match="replaced"):
        await in_thread(check, reader, MIB, MIB + 1)
    reader.close()
    assert budget.taken == 0


async def test_what_is_on_its_way_for_a_row_group_that_was_left_is_dropped() -> None:
    server, budget = Server(), Budget(64 * MIB)
    reader = server.reader(16 * MIB, budget)
    groups = [[(at, at + 8 * MIB)] for at in (0, 8 * MIB)]
    await in_thread(reader.will_read, groups)
    await in_thread(check, reader, 8 * MIB, 9 * MIB)
    assert budget.taken == 0
    await in_thread(check, reader, 0, MIB)
    reader.close()


async def test_columns_of_any_sizes_are_fetched_once() -> None:
    """The row group takes three times the memory, and a sample of it is read first."""
    server = Server()
    sizes = [2, 1, 3, 10, 1, 4, 3]
    ends = [sum(sizes[:i]) * MIB for i in range(8)]
    columns = list(pairwise(ends))
    reader = server.reader(16 * MIB, Budget(64 * MIB))

    def read() -> None:
        reader.will_read([columns])
        for start, _ in columns:
            check(reader, start, start + 256 * KIB)
        for step in range(100):
            for start, end in columns:
                edges = (start + (end - start) * at // 100 for at in (step, step + 1))
                check(reader, *edges)
        reader.close()

    await in_thread(read)
    assert min(server.asked)[0] == 0
    assert all(end == start for (_, end), (start, _) in pairwise(sorted(server.asked)))


@pytest.mark.parametrize("seed", range(8))
async def test_memory_is_bounded_whatever_is_announced_and_read(seed: int) -> None:
    chance = random.Random(seed)
    most = chance.choice([300 * KIB, 2 * MIB, 8 * MIB])
    columns = chance.choice([1, 3, 40])
    edges = sorted(chance.sample(range(len(DATA)), 2 * columns))
    group = list(zip(edges[::2], edges[1::2], strict=True))
    halves = [[(a, (a + b) // 2) for a, b in group], [((a + b) // 2, b) for a, b in group]]
    server, budget = Server(), Budget(most // 2)
    reader = server.reader(most, budget, tail=64 * KIB)

    def read() -> None:
        reader.will_read(halves[:1])
        for start, end in halves[0]:  # a sample of each
            check(reader, start, min(end, start + 256 * KIB))
        reader.will_read([sorted(half) for half in halves])
        for half in halves:
            at = dict.fromkeys(half, 0)
            while any(column[0] + done < column[1] for column, done in at.items()):
                for column, done in at.items():
                    size = min(256 * KIB, column[1] - column[0] - done)
                    check(reader, column[0] + done, column[0] + done + size)
                    at[column] += size
                    kept = sum(k.piece.size for k in reader._kept)
                    assert kept <= max(most // 2, 256 * KIB)
                    assert budget.taken <= most // 2
        reader.close()

    await in_thread(read)
    assert budget.taken == 0
    wanted = sum(end - start for start, end in group)
    assert sum(end - start for start, end in server.asked) <= 2 * wanted + columns * MIB
