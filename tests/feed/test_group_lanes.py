"""Groups are decoded three at a time, and their chunks come in order."""

from __future__ import annotations

from collections.abc import AsyncIterator

import anyio
import anyio.lowlevel
import pytest

from tailer.feed.rows.group_lanes import Use, decode_in_lanes

pytestmark = pytest.mark.anyio


async def _given(*groups: list[int]) -> AsyncIterator[list[int]]:
    for group in groups:
        yield group


class _Decoded:
    """Decodes a group to its own numbers, and keeps how far each group is."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.open = 0
        self.most = 0

    async def __call__(self, group: list[int], use: Use[int]) -> None:
        self.open += 1
        self.most = max(self.most, self.open)
        try:
            for number in group:
                self.begun.append(number)
                await anyio.lowlevel.checkpoint()
                await use(number)
        finally:
            self.open -= 1


MIB = 1024 * 1024


# What is made, in all, while the first chunk is used, the second one, and so on.
@pytest.mark.parametrize(("size", "expected"), [
    # Of its own group one chunk more, and one of the group that waits, perhaps the empty one.
    (64 * MIB, [[2, 5], [3, 5], [4, 5], [5], [6], [], []]),
    # All of both groups.
    (10 * MIB, [[2, 3, 4, 5, 6], [3, 4, 5, 6], [4, 5, 6], [5, 6], [6], [], []]),
])  # fmt: skip
async def test_how_far_a_group_is_ahead(size: int, expected: list[list[int]]) -> None:
    decoded, used = _Decoded(), list[int]()
    ahead: list[list[int]] = []

    async def use(number: int) -> None:
        await anyio.wait_all_tasks_blocked()
        used.append(number)
        ahead.append(sorted(set(decoded.begun) - set(used)))

    await decode_in_lanes(_given([1, 2, 3, 4], [5, 6], [], [7]), decoded, use, lambda _: size)
    assert used == [1, 2, 3, 4, 5, 6, 7]
    assert ahead == expected
    assert decoded.most == 2


@pytest.mark.parametrize("lane", ["decode", "use", "groups"])
async def test_an_error_comes_in_its_place_and_leaves_nothing_open(lane: str) -> None:
    decoded, used = _Decoded(), list[int]()

    async def groups() -> AsyncIterator[list[int]]:
        yield [1, 2]
        yield [3]
        if lane == "groups":
            await anyio.wait_all_tasks_blocked()
            raise ValueError(lane)
        yield [4]

    async def decode(group: list[int], use: Use[int]) -> None:
        await decoded(group, use)
        if lane == "decode" and group == [3]:
            raise ValueError(lane)

    async def use(number: int) -> None:
        used.append(number)
        if lane == "use" and number == 3:
            raise ValueError(lane)

    with pytest.raises(ValueError, match=lane):
        await decode_in_lanes(groups(), decode, use, lambda _: 1)
    assert used == [1, 2, 3], "all that comes before the error was used"
    assert not decoded.open


async def test_what_is_open_is_closed_when_it_is_cancelled() -> None:
    decoded = _Decoded()

    async def use(number: int) -> None:
        if number == 2:
            await anyio.sleep_forever()

    with anyio.move_on_after(0.01):
        await decode_in_lanes(_given([1, 2], [3], [4], [5], [6]), decoded, use, lambda _: 1)
    assert not decoded.open
    assert 6 not in decoded.begun
