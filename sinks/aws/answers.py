"""Answers of a service: read whole with a bound, and asked what became of each message.

aiobotocore reads as many bytes as a server sends, and what it can't find in an answer with status
200 is missing from its result. A proxy's page is such an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any

import aiohttp
from botocore.exceptions import HTTPClientError

from tailer.network.http_answers import Oversize, read_whole_body

#: Of an answer for at most 500 records.
_ANSWER_BYTES_MAX = 16 * 1024 * 1024


class NoAnswer(Exception):
    """An answer does not say what became of a message."""

    def __init__(self) -> None:
        super().__init__("its answer does not say what became of each message")


class MessageRefused(Exception):
    """The service has not taken a message: the error's code, and what it says."""

    def __init__(self, code: str, said: str) -> None:
        super().__init__(f"{code}: {said}")
        self.code = code


def find_refused_entries(answer: Mapping[str, Any], count: int) -> list[tuple[int, MessageRefused]]:
    """Return the entries of a batch that were not taken, in order. Raises :class:`NoAnswer`."""
    failed, taken = answer.get("Failed", []), answer.get("Successful", [])
    numbers = {str(number): number for number in range(count)}
    if {one.get("Id") for one in (*failed, *taken)} != numbers.keys():
        raise NoAnswer
    refused = ((numbers[one["Id"]], _make_refusal(one, "Code", "Message")) for one in failed)
    return sorted(refused, key=lambda one: one[0])


def find_refused_records(
    answers: Sequence[Mapping[str, Any]] | None, count: int, receipt: str
) -> list[tuple[int, MessageRefused]]:
    """Return the records that were not taken, in order; of each other one there is a ``receipt``.
    Raises :class:`NoAnswer`."""
    answers = answers or []
    if len(answers) != count or not all(
        one.get("ErrorCode") or one.get(receipt) for one in answers
    ):
        raise NoAnswer
    numbered: Iterable[tuple[int, Mapping[str, Any]]] = enumerate(answers)
    return [
        (number, _make_refusal(one, "ErrorCode", "ErrorMessage"))
        for number, one in numbered
        if one.get("ErrorCode")
    ]


def _make_refusal(one: Mapping[str, Any], code: str, said: str) -> MessageRefused:
    return MessageRefused(str(one.get(code, "")), str(one.get(said, "")))


def make_bounded_config(**settings: Any) -> Any:
    """Return a configuration of aiobotocore's clients, which take no answer without end."""
    from aiobotocore.config import DEFAULT_HTTP_SESSION_CLS, AioConfig

    patience_s = settings["connect_timeout"] + 2 * settings["read_timeout"]

    class Bounded(DEFAULT_HTTP_SESSION_CLS):  # type: ignore[misc]  # without types
        async def send(self, request: Any) -> Any:
            streams, request.stream_output = request.stream_output, True
            if isinstance(request.body, bytes):  # which aiohttp warns of where they are many
                request.body = BytesIO(request.body)
            try:
                async with asyncio.timeout(patience_s):
                    response = await super().send(request)
            except TimeoutError as e:
                raise HTTPClientError(error=f"no answer in {patience_s:g} s") from e
            if not streams:
                try:
                    parts = await read_whole_body(response.raw, _ANSWER_BYTES_MAX)
                except (Oversize, aiohttp.ClientError, OSError) as e:
                    response.raw.close()
                    raise HTTPClientError(error=e) from e
                response._content = b"".join(parts)  # noqa: SLF001  # as its own does
            return response

    return AioConfig(http_session_cls=Bounded, **settings)
