"""Work that begins without an event loop."""

from __future__ import annotations

import threading

import anyio
import anyio.lowlevel
import pytest

from tailer.process.threads import (
    BegunWork,
    blocking,
    event_loop,
    has_event_loop,
    now,
    shielded,
    without_loop,
)


async def _thread() -> int:
    return await blocking(threading.get_ident)


def test_work_without_a_loop_is_done_where_it_is() -> None:
    async def work() -> tuple[int, bool]:
        return await _thread(), has_event_loop()

    begun = BegunWork(work)
    assert begun.begin()
    assert begun.result == (threading.get_ident(), False)
    assert without_loop(work()) == begun.result


def test_work_goes_on_in_a_loop_from_where_it_wants_one() -> None:
    places: list[bool] = []

    async def work() -> bool:
        places.append(has_event_loop())
        assert now() > 0
        await _inner()
        await event_loop()  # it has one
        return await _thread() != threading.get_ident()

    async def _inner() -> None:
        await event_loop()
        places.append(has_event_loop())
        assert now() > 0
        await anyio.lowlevel.checkpoint()

    begun = BegunWork(work)
    assert not begun.begin()
    anyio.run(begun.go_on)
    assert begun.result is True
    assert places == [False, True]


def test_work_that_was_not_begun_is_done_in_the_loop() -> None:
    async def work() -> bool:
        return has_event_loop()

    begun = BegunWork(work)
    anyio.run(begun.give_up)  # does nothing
    anyio.run(begun.go_on)
    assert begun.result is True


def test_an_error_is_raised_on_either_side() -> None:
    async def work(*, wants: bool) -> None:
        if wants:
            await event_loop()
        raise ValueError

    with pytest.raises(ValueError, match=r"^$"):
        BegunWork(lambda: work(wants=False)).begin()
    begun = BegunWork(lambda: work(wants=True))
    assert not begun.begin()
    with pytest.raises(ValueError, match=r"^$"):
        anyio.run(begun.go_on)
    assert has_event_loop(), "it is forgotten"


def test_what_is_given_up_cleans_up_and_does_not_go_on() -> None:
    done: list[str] = []

    async def work() -> None:
        try:
            await event_loop()
            await anyio.lowlevel.checkpoint()
            done.append("went on")
        finally:
            with shielded():
                await anyio.lowlevel.checkpoint()
            done.append("cleaned up")

    begun = BegunWork(work)
    assert not begun.begin()
    anyio.run(begun.give_up)
    assert done == ["cleaned up"]


def test_what_wants_a_loop_and_can_t_have_one_is_an_error() -> None:
    with pytest.raises(AssertionError, match="event loop"):
        without_loop(event_loop())
