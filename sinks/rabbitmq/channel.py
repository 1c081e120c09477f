"""A channel of RabbitMQ that confirms messages, for code that waits: pika has callbacks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import Any

#: How long to wait for the broker's goodbye, in seconds.
_CLOSE_S = 3.0
#: The broker's frames have 128 KiB where it is not configured otherwise.
_FRAME_BYTES_MAX = 16 * 1024 * 1024
#: This number of messages is sent before answers are looked at.
_TURN = 50


class NotConfirmed(Exception):
    """The broker has not taken a message."""


class Unroutable(Exception):
    """No queue is bound to the exchange for the routing key."""


class Channel:
    """One connection, with one channel at a time. Every call waits ``timeout_s`` at most. It raises
    pika's errors, also that with which the connection ended, and TimeoutError."""

    def __init__(self, parameters: Any, timeout_s: float) -> None:
        self._parameters = parameters
        self._timeout_s = timeout_s
        self._connection: Any = None
        self._channel: Any = None
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sent = 0
        self._unconfirmed: set[int] = set()
        self._confirmed: asyncio.Future[None] | None = None
        self._rejected: int | None = None  # the first one
        self._returned_text: str | None = None

    async def open(self) -> None:
        """Connect, and open a channel."""
        from pika.adapters.asyncio_connection import AsyncioConnection

        class Bounded(AsyncioConnection):  # type: ignore[misc]  # of a library without types
            """pika waits for as many bytes as a frame says that it has."""

            def _on_data_available(self, data_in: bytes) -> None:
                super()._on_data_available(data_in)
                if len(self._frame_buffer) > _FRAME_BYTES_MAX:
                    raise ConnectionError(f"a frame of more than {_FRAME_BYTES_MAX} bytes")

        def connect(opened: Callable[[Any], None]) -> None:
            self._connection = Bounded(
                self._parameters,
                on_open_callback=opened,
                on_open_error_callback=self._note_end,
                on_close_callback=self._note_end,
            )

        # pika has the same limit, and would not be given up in order while it reaches it.
        await self._await_callback(connect, self._timeout_s + _CLOSE_S)
        await self.open_channel()

    async def open_channel(self) -> None:
        """Open a channel, also in the place of one that the broker has closed."""
        self._ended = asyncio.get_running_loop().create_future()
        self._channel = await self._await_callback(
            lambda opened: self._connection.channel(on_open_callback=opened)
        )
        self._channel.add_on_close_callback(self._note_end)
        self._channel.add_on_return_callback(self._note_return)
        self._sent, self._unconfirmed = 0, set()
        await self._await_callback(
            lambda done: self._channel.confirm_delivery(self._note_confirmation, done)
        )

    async def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of pika's channel that has an answer."""
        ask = getattr(self._channel, method)
        return await self._await_callback(lambda done: ask(*arguments, callback=done, **named))

    async def publish(self, messages: Iterable[tuple[Sequence[str], bytes, Any]]) -> int:
        """Publish messages (exchange and routing key, body, pika's properties), in order; return
        how many the broker has confirmed, from the first one on. If these are not all, it has
        rejected the next one; then no more are sent.

        Raises :class:`Unroutable`.
        """
        self._returned_text, self._rejected, self._confirmed = None, None, None
        first = self._sent + 1
        publish = self._channel.basic_publish
        for (exchange, key), body, properties in messages:
            self._sent += 1
            self._unconfirmed.add(self._sent)
            publish(exchange, key, body, properties, mandatory=True)
            if not self._sent % _TURN:
                await asyncio.sleep(0)  # for answers that have come
                if self._has_stopped():
                    break
        if self._unconfirmed:
            self._confirmed = asyncio.get_running_loop().create_future()
            await self._wait_for_answer(self._confirmed)
        return self._find_first_left() - first

    def _has_stopped(self) -> bool:
        return self._rejected is not None or self._ended.done()

    def _find_first_left(self) -> int:
        """Return the number of the first message that was not taken, of those that were sent."""
        if self._returned_text is not None:
            raise Unroutable(self._returned_text)
        return self._sent + 1 if self._rejected is None else self._rejected

    def _note_confirmation(self, frame: Any) -> None:
        from pika.spec import Basic

        tag = frame.method.delivery_tag
        answered = {tag}
        if frame.method.multiple:
            answered = {one for one in self._unconfirmed if one <= tag}
        self._unconfirmed -= answered
        if isinstance(frame.method, Basic.Nack) and answered:
            self._rejected = min(self._rejected or tag, *answered)
        if not self._unconfirmed and self._confirmed and not self._confirmed.done():
            self._confirmed.set_result(None)

    def _note_return(self, _: Any, method: Any, *__: Any) -> None:
        self._returned_text = str(method.reply_text)

    def _note_end(self, _: Any, reason: Any) -> None:
        """Keep why the connection or the channel has ended, if it is the first reason."""
        if not self._ended.done():
            error = reason if isinstance(reason, Exception) else ConnectionError(str(reason))
            self._ended.set_exception(error)
            self._ended.exception()  # nobody may wait for it

    async def _await_callback(
        self, ask: Callable[[Callable[[Any], None]], object], timeout_s: float | None = None
    ) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def done(found: Any) -> None:
            if not answer.done():
                answer.set_result(found)

        ask(done)
        return await self._wait_for_answer(answer, timeout_s)

    async def _wait_for_answer(
        self, answer: asyncio.Future[Any], timeout_s: float | None = None
    ) -> Any:
        """Return an answer, or raise why there will be none."""
        both, limit_s = {answer, self._ended}, timeout_s or self._timeout_s
        await asyncio.wait(both, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        answer.cancel()
        if self._ended.done():
            self._ended.result()
        raise TimeoutError(f"no answer in {limit_s:g} s")

    async def close(self) -> None:
        """Close the connection, if there is one; without a goodbye, if that takes long."""
        connection, self._connection = self._connection, None
        if connection is None or connection.is_closed:
            return
        if not connection.is_closing:
            ended = self._ended = asyncio.get_running_loop().create_future()
            with suppress(Exception):  # it may be closing just now
                connection.close()
                await asyncio.wait({ended}, timeout=min(self._timeout_s, _CLOSE_S))
        # pika has no public way to give a connection up, and would leave its socket open.
        transport = None if connection.is_closed else connection._transport  # noqa: SLF001
        if transport is not None:
            transport.abort()
            await asyncio.sleep(0)  # it closes the socket in the loop's next turn
