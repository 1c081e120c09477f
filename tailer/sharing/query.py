"""A request about a table, and its answer line by line, over all pages."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from tailer.errors import TransientError
from tailer.network.http_answers import Rounds
from tailer.sharing.answers import Line, SharedFile, parse_line
from tailer.sharing.http import SharingRefused, may_heal_status
from tailer.sharing.model import EndOfStream, ResponseFormat


@dataclass(frozen=True, slots=True)
class TableQuery:
    """The body of /query ("Read Data from a Table").

    ``version`` is for tables with shared history.
    """

    limit_hint: int | None = None
    version: int | None = None
    starting_version: int | None = None
    ending_version: int | None = None
    refresh_token: str | None = None
    include_refresh_token: bool = False

    def to_json(self) -> dict[str, Any]:
        """Return the body; ``{}`` for the newest version's files."""
        values: dict[str, Any] = {
            "limitHint": self.limit_hint,
            "version": self.version,
            "startingVersion": self.starting_version,
            "endingVersion": self.ending_version,
            "refreshToken": self.refresh_token,
            "includeRefreshToken": self.include_refresh_token or None,
        }
        return {key: value for key, value in values.items() if value is not None}


@dataclass(slots=True)
class QueryAnswer:
    """An answer about a table: ``version`` of its header, ``form`` of its lines.

    ``version`` is the current one for a plain query, the starting one for a range; None without the
    header. ``end`` is the end-of-stream action, once :meth:`parse_lines` has reached it.
    """

    version: int | None
    form: ResponseFormat
    _pages: Callable[[str | None], AsyncGenerator[tuple[ResponseFormat, bytes | None], None]]
    end: EndOfStream | None = field(default=None)

    async def parse_lines(self) -> AsyncGenerator[Line, None]:
        """Yield the lines, over all pages.

        Raises :class:`TransientError` for an answer that is cut short: by the connection, by half
        a line, or by the lack of an end-of-stream action that was promised.
        """
        token: str | None = None
        rounds = Rounds()
        while True:
            self.end = None
            empty = True
            async with aclosing(self._pages(token)) as page:
                async for form, raw in page:
                    if raw is None:
                        self._check_whole()
                        continue
                    line = parse_line(raw, form)
                    empty = empty and not isinstance(line, SharedFile)
                    if isinstance(line, EndOfStream):
                        self.end = line
                        if line.error:
                            raise _make_broken_error(line.error, line.error_status)
                    elif line is not None:
                        yield line
            following = self.end.next_page_token if self.end is not None else None
            if following is None:
                return
            if rounds.add_token(following, empty=empty):
                raise TransientError("the sharing server's pages form a loop")
            token = following

    def _check_whole(self) -> None:
        if self.end is None:
            raise TransientError(
                "the sharing server's answer lacks the end-of-stream action that its header "
                "promises: it was cut short"
            )


def _make_broken_error(error: str, status: int | None) -> Exception:
    sentence = f"the sharing server broke off: {error}"
    if status is None or may_heal_status(status):
        return TransientError(sentence)
    return SharingRefused(sentence, status)
