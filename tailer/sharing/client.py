"""A client of a Delta Sharing server: lists, versions and answers line by line.

Every call is one request of the protocol (a list: one per page). Answers stream: a line is parsed
when it is requested, and closing an answer early closes its connection. Nothing is retried here,
except with a new OAuth token when the server rejects the old one. Errors that may heal are
:class:`~tailer.errors.TransientError`, with the server's Retry-After.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from tailer.errors import TableError, TransientError
from tailer.network.http_answers import (
    Oversize,
    Rounds,
    parse_natural,
    parse_retry_after,
    read_at_most,
    read_whole_body,
)
from tailer.sharing.auth import Authorization
from tailer.sharing.http import (
    Sessions,
    SharingRefused,
    may_heal_status,
    send_request,
    split_lines,
)
from tailer.sharing.model import (
    CAPABILITIES_HEADER,
    READER_FEATURES,
    TABLE_VERSION_HEADER,
    Capabilities,
    ErrorBody,
    Page,
    ResponseFormat,
    Share,
    ShareSchema,
    Table,
)
from tailer.sharing.profile import Profile
from tailer.sharing.query import QueryAnswer, TableQuery

if TYPE_CHECKING:
    from aiohttp import ClientResponse

_ERROR_BYTES_MAX = 64 * 1024
_PAGE_BYTES_MAX = 32 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """How to talk to a server.

    ``response_format``: ``auto`` accepts delta for a table that needs it and parquet elsewhere, as
    the server chooses. ``max_results`` is the page size of lists (None: the server's default).
    ``ca_file`` is a PEM file that replaces the system's authorities. ``answer_bytes_max`` bounds
    one answer about a table, which goes to the disk.
    """

    response_format: Literal["auto", "delta", "parquet"] = "auto"
    max_results: int | None = None
    ca_file: str | None = None
    timeout_s: float = 120.0
    answer_bytes_max: int = 16 * 1024**3

    def make_capabilities(self) -> Capabilities:
        """Return the capabilities that every request about a table sends."""
        formats = {"auto": ("delta", "parquet")}.get(self.response_format, (self.response_format,))
        features = READER_FEATURES if "delta" in formats else frozenset[str]()
        return Capabilities(formats, features, end_of_stream=True)


class _AnswerForm(NamedTuple):
    form: ResponseFormat
    end_promised: bool  # an end-of-stream action


class SharingClient:
    """A client of one server with one profile. ``clock`` gives epoch seconds.

    Close it when done.
    """

    def __init__(
        self, profile: Profile, clock: Callable[[], float], options: ClientOptions | None = None
    ) -> None:
        self.profile = profile
        self.options = options or ClientOptions()
        self.clock = clock
        self._authorization = Authorization(profile, clock)
        self.sessions = Sessions(profile.endpoint, self.options.ca_file, self.options.timeout_s)
        self._capabilities = self.options.make_capabilities()

    def __repr__(self) -> str:
        return f"SharingClient({self.profile.endpoint!r})"

    async def aclose(self) -> None:
        """Close all connections."""
        await self.sessions.aclose()

    # Lists

    async def load_page(
        self, path: str, max_results: int | None = None, token: str | None = None
    ) -> Page:
        """Return one page of a list, by the path after the endpoint."""
        params: dict[str, str] = {}
        if max_results is not None:
            params["maxResults"] = str(max_results)
        if token:
            params["pageToken"] = token
        async with self._send_request("GET", path, params=params) as response:
            return Page.from_json(await _read_document(response, path))

    async def _list_items(self, path: str) -> AsyncGenerator[dict[str, Any], None]:
        token: str | None = None
        rounds = Rounds()
        while True:
            page = await self.load_page(path, self.options.max_results, token)
            for item in page.items:
                yield item
            if page.next_page_token is None:
                return
            token = page.next_page_token
            if rounds.add_token(token, empty=not page.items):
                raise TransientError(f"the pages of {path} form a loop")

    async def list_shares(self) -> AsyncGenerator[Share, None]:
        """Yield the shares that the profile may see."""
        async with aclosing(self._list_items("/shares")) as items:
            async for item in items:
                yield Share.from_json(item)

    async def load_share(self, name: str) -> Share:
        """Return one share by its name."""
        path = f"/shares/{_quote_part(name)}"
        async with self._send_request("GET", path) as response:
            document = await _read_document(response, path)
            return Share.from_json(document.get("share") if isinstance(document, dict) else None)

    async def list_schemas(self, share: str) -> AsyncGenerator[ShareSchema, None]:
        """Yield the schemas of a share."""
        async with aclosing(self._list_items(f"/shares/{_quote_part(share)}/schemas")) as items:
            async for item in items:
                yield ShareSchema.from_json({"share": share, **item})

    async def list_tables(self, share: str, schema: str) -> AsyncGenerator[Table, None]:
        """Yield the tables of a schema."""
        path = f"/shares/{_quote_part(share)}/schemas/{_quote_part(schema)}/tables"
        async with aclosing(self._list_items(path)) as items:
            async for item in items:
                yield Table.from_json({"share": share, "schema": schema, **item})

    async def list_all_tables(self, share: str) -> AsyncGenerator[Table, None]:
        """Yield the tables of all schemas of a share."""
        async with aclosing(self._list_items(f"/shares/{_quote_part(share)}/all-tables")) as items:
            async for item in items:
                yield Table.from_json({"share": share, **item})

    # Tables

    async def find_version(self, table: Table, starting_timestamp: str | None = None) -> int:
        """Return the current version, or the first at or after a time ("Query Table Version").

        By GET; if the server has no such GET, by HEAD on the table, as in older servers.
        """
        params = {"startingTimestamp": starting_timestamp} if starting_timestamp else {}
        try:
            return await self._request_version(
                "GET", f"{_format_table_path(table)}/version", params
            )
        except SharingRefused as refusal:
            if refusal.status not in (404, 405, 501):
                raise
            try:
                return await self._request_version("HEAD", _format_table_path(table), params)
            except SharingRefused:
                raise refusal from None

    async def _request_version(self, method: str, path: str, params: Mapping[str, str]) -> int:
        async with self._send_request(method, path, params=params) as response:
            version = _parse_table_version(response)
        if version is None:
            # Also a proxy's own page with status 200 has none.
            raise TransientError(f"{path}: the answer has no header {TABLE_VERSION_HEADER}")
        return version

    @asynccontextmanager
    async def request_metadata(self, table: Table) -> AsyncIterator[QueryAnswer]:
        """Request protocol and metadata of the current version ("Query Table Metadata")."""
        path = f"{_format_table_path(table)}/metadata"
        async with self._request_answer("GET", path, {}, None, two_lines=True) as answer:
            yield answer

    @asynccontextmanager
    async def send_query(self, table: Table, query: TableQuery) -> AsyncIterator[QueryAnswer]:
        """Request a snapshot's files, or a range's data changes ("Read Data from a Table")."""
        path = f"{_format_table_path(table)}/query"
        async with self._request_answer("POST", path, {}, query.to_json()) as answer:
            yield answer

    @asynccontextmanager
    async def request_changes(
        self, table: Table, *, starting_version: int, ending_version: int | None = None
    ) -> AsyncIterator[QueryAnswer]:
        """Request the change data feed of a range, inclusive.

        "Read Change Data Feed from a Table".
        """
        params = {"startingVersion": str(starting_version), "includeHistoricalMetadata": "true"}
        if ending_version is not None:
            params["endingVersion"] = str(ending_version)
        async with self._request_answer(
            "GET", f"{_format_table_path(table)}/changes", params, None
        ) as answer:
            yield answer

    @asynccontextmanager
    async def _request_answer(
        self,
        method: str,
        path: str,
        params: Mapping[str, str],
        body: dict[str, Any] | None,
        *,
        two_lines: bool = False,
    ) -> AsyncIterator[QueryAnswer]:
        # An answer of always two lines needs no end-of-stream action.
        said = replace(self._capabilities, end_of_stream=not two_lines)
        async with self._send_request(method, path, params=params, body=body, said=said) as first:
            form = self._find_form(first).form

            async def pages(
                token: str | None,
            ) -> AsyncGenerator[tuple[ResponseFormat, bytes | None], None]:
                """Yield the page's raw lines, and None at its end if an end was promised."""
                if token is None:
                    async with aclosing(self._read_page_lines(first)) as lines:
                        async for line in lines:
                            yield line
                    return
                more = {} if body is not None else {"pageToken": token}
                asked = {**body, "pageToken": token} if body is not None else None
                async with (
                    self._send_request(
                        method, path, params={**params, **more}, body=asked, said=said
                    ) as response,
                    aclosing(self._read_page_lines(response)) as lines,
                ):
                    async for line in lines:
                        yield line

            yield QueryAnswer(_parse_table_version(first), form, pages)

    async def _read_page_lines(
        self, response: ClientResponse
    ) -> AsyncGenerator[tuple[ResponseFormat, bytes | None], None]:
        form, end_promised = self._find_form(response)
        async with aclosing(split_lines(response, self.options.answer_bytes_max)) as lines:
            async for line in lines:
                yield form, line
        if end_promised:
            yield form, None

    def _find_form(self, response: ClientResponse) -> _AnswerForm:
        """Return the format of an answer's lines, and whether it promises an end.

        A client that accepts delta accepts parquet too, from servers that ignore the header; a
        client that accepts only parquet can't read delta ("Compatibility").
        """
        said = Capabilities.from_header(response.headers.get(CAPABILITIES_HEADER))
        form = said.response_formats[0] if said.response_formats else "parquet"
        if form not in ("parquet", "delta"):
            raise TableError(f"the sharing server answers in the format {form!r}, unknown here")
        if form == "delta" and "delta" not in self._capabilities.response_formats:
            raise TableError(
                "the sharing server answers in delta format, but parquet was requested",
                hint="set the option response_format to auto or delta",
            )
        return _AnswerForm(form, said.end_of_stream)  # type: ignore[arg-type]  # one of the two

    # Requests

    @asynccontextmanager
    async def _send_request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: dict[str, Any] | None = None,
        said: Capabilities | None = None,
    ) -> AsyncIterator[ClientResponse]:
        """Send one request, and yield its answer of status 200; any other status is an error."""
        query = "&".join(f"{k}={quote(v, safe='')}" for k, v in (params or {}).items())
        url = self.profile.endpoint + path + (f"?{query}" if query else "")
        headers = {"Accept": "application/x-ndjson, application/json"}
        if said is not None:
            headers[CAPABILITIES_HEADER] = said.to_header()
        what = f"{method} {path}"
        async with send_request(
            self.sessions, self._authorization, method, url,
            what=what, address="the profile's endpoint", headers=headers, body=body,
        ) as response:  # fmt: skip
            if response.status != 200:
                raise await self._make_refusal(response, what)
            yield response

    async def _make_refusal(self, response: ClientResponse, what: str) -> Exception:
        body = await read_at_most(response, _ERROR_BYTES_MAX)
        error = ErrorBody.from_bytes(body)
        said = f" ({error})" if error and str(error) else ""
        status = response.status
        sentence = f"{what}: the sharing server answered {status}{said}"
        if may_heal_status(status):
            wish = response.headers.get("Retry-After")
            return TransientError(sentence, parse_retry_after(wish, self.clock()))
        hint = None
        if status == 401 and error is None and body.strip():
            # The protocol has an error for a token that is not known.
            raise TransientError(
                f"{sentence} with a page; check the profile {self.profile.source}, and any proxy "
                "between this machine and the server"
            )
        if status == 401:
            expires = self._authorization.find_expiry()
            ended = f"; its token ends at {expires.isoformat()}" if expires else ""
            hint = f"check the profile {self.profile.source}{ended}"
        elif status in (301, 302, 303, 307, 308):
            hint = "the endpoint in the profile has moved; tokens are not sent elsewhere"
        return SharingRefused(sentence, status, hint=hint)


async def _read_document(response: ClientResponse, path: str) -> Any:
    try:
        return json.loads(await _read_bounded(response))
    except (ValueError, RecursionError):
        raise TransientError(f"GET {path}: the sharing server's answer is not JSON") from None


async def _read_bounded(response: ClientResponse) -> bytes:
    try:
        return b"".join(await read_whole_body(response, _PAGE_BYTES_MAX))
    except Oversize:
        raise TransientError("a page of the sharing server is too large") from None


def _parse_table_version(response: ClientResponse) -> int | None:
    return parse_natural(response.headers.get(TABLE_VERSION_HEADER, "").strip())


def _quote_part(name: str) -> str:
    return quote(name, safe="")


def _format_table_path(table: Table) -> str:
    share, schema, name = (
        _quote_part(table.share),
        _quote_part(table.schema),
        _quote_part(table.name),
    )
    return f"/shares/{share}/schemas/{schema}/tables/{name}"
