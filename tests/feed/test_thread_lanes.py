"""Groups are decoded by threads, and their chunks come in order."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Generator

import pytest

from tailer.feed.rows import thread_lanes
from tailer.feed.rows.group_lanes import WAITING_BYTES
from tailer.feed.rows.thread_lanes import in_threads
from tailer.process.threads import without_loop

MIB = 1024 * 1024


async def _given(*groups: list[int]) -> AsyncIterator[list[int]]:
    for group in groups:
        yield group


class _Decoded:
    """Decodes a group to its own numbers, and keeps how far each group is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.begun: list[int] = []
        self.used: list[int] = []
        self.open = self.most = 0
        self.threads: set[int] = set()

    def __call__(self, group: list[int]) -> Generator[int]:
        with self.lock:
            self.open += 1
            self.most = max(self.most, self.open)
        self.threads.add(threading.get_ident())
        try:
            for number in group:
                with self.lock:
                    self.begun.append(number)
                yield number
        finally:
            with self.lock:
                self.open -= 1

    async def use(self, number: int) -> None:
        self.used.append(number)

    def ahead(self) -> int:
        """How many chunks were begun, and are not used yet."""
        with self.lock:
            return len(set(self.begun) - set(self.used))


@pytest.mark.parametrize("size", [1, 10 * MIB, 64 * MIB])
def test_chunks_come_in_order_and_no_more_wait_than_there_is_room_for(size: int) -> None:
    decoded = _Decoded()
    groups = [[*range(at, at + 7)] for at in range(0, 70, 7)] + [[], [70]]
    # What is in use, what each thread has just made, and what waits.
    begun = thread_lanes._BEGUN
    most = 1 + begun + max(begun, WAITING_BYTES // size)

    async def use(number: int) -> None:
        assert decoded.ahead() <= most
        await decoded.use(number)

    without_loop(in_threads(_given(*groups), decoded, use, lambda _: size))
    assert decoded.used == [*range(71)]
    assert threading.get_ident() not in decoded.threads
    assert 1 <= decoded.most <= begun + 1  # one that has made all ends while the next one begins
    assert not decoded.open


def test_groups_are_decoded_while_another_one_is_used() -> None:
    decoded = _Decoded()
    behind = threading.Event()

    def decode(group: list[int]) -> Generator[int]:
        if group == [2]:
            behind.set()
        yield from decoded(group)

    async def use(number: int) -> None:
        assert behind.wait(60), "the second group waits for the first one"
        await decoded.use(number)

    without_loop(in_threads(_given([1], [2]), decode, use, lambda _: 1))
    assert decoded.used == [1, 2]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_no_thread_is_left_behind_an_error_or_an_interruption(error: type[BaseException]) -> None:
    decoded, go_on = _Decoded(), threading.Event()

    def decode(group: list[int]) -> Generator[int]:
        yield from decoded(group)
        if group == [2]:
            assert go_on.wait(60)
            threading.Event().wait(0.2)  # a step takes its time

    async def use(number: int) -> None:
        go_on.set()
        raise error(number)

    threads = {*threading.enumerate()}
    with pytest.raises(error):
        without_loop(in_threads(_given([1], [2]), decode, use, lambda _: 1))
    assert {*threading.enumerate()} <= threads, "those of other tests may end meanwhile"


@pytest.mark.parametrize("lane", ["decode", "use", "groups"])
@pytest.mark.parametrize("size", [1, 64 * MIB])
def test_an_error_comes_in_its_place_and_leaves_nothing_open(lane: str, size: int) -> None:
    decoded = _Decoded()

    async def groups() -> AsyncIterator[list[int]]:
        yield [1, 2]
        yield [3]
        if lane == "groups":
            raise ValueError(lane)
        yield [4, 5, 6]

    def decode(group: list[int]) -> Generator[int]:
        yield from decoded(group)
        if lane == "decode" and group == [3]:
            raise ValueError(lane)

    async def use(number: int) -> None:
        await decoded.use(number)
        if lane == "use" and number == 3:
            raise ValueError(lane)

    threads = {*threading.enumerate()}
    with pytest.raises(ValueError, match=lane):
        without_loop(in_threads(groups(), decode, use, lambda _: size))
    assert decoded.used == [1, 2, 3], "all that comes before the error was used"
    assert not decoded.open
    assert {*threading.enumerate()} <= threads, "those of other tests may end meanwhile"
