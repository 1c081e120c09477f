"""A client of Unity Catalog's API: what a table's name stands for, and credentials for its files.

Tables are loaded by the Delta API (``/delta/v1``), which has the commits that are ratified and not
yet published. An attempt that fails in a way that may heal is repeated a few times.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import msgspec

from tailer.errors import ConfigError, TableError, TransientError, printable
from tailer.network.backoff import Backoff
from tailer.network.http_answers import (
    Oversize,
    Rounds,
    parse_retry_after,
    read_at_most,
    read_whole_body,
)
from tailer.process.json_decoders import json_decoder
from tailer.sharing.auth import Authorization
from tailer.sharing.http import Sessions, may_heal_status, send_request
from tailer.sharing.profile import BearerToken, Profile
from tailer.store.unity.answers import (
    CatalogTable,
    Loaded,
    Named,
    Schemas,
    TableCredentials,
    TablePage,
    parse_credential,
    table_of,
)
from tailer.store.unity.options import CatalogOptions, TableName
from tailer.store.vended import VendedCredential

T = TypeVar("T")

_ATTEMPTS = 4
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.1, 2.0
#: A longer Retry-After is left to the caller.
_RETRY_AFTER_HERE_S = 3.0
_TIMEOUT_S = 30.0
_ERROR_BYTES_MAX = 64 * 1024
_BYTES_MAX = 64 * 1024 * 1024
_PAGE_ITEMS = 50


class _Refused(TableError):
    """The catalog refused a request, with a status that a retry won't change; ``kind`` is the
    type of its error, or ""."""

    def __init__(self, what: str, status: int, kind: str, hint: str | None) -> None:
        super().__init__(what, hint=hint)
        self.status, self.kind = status, kind


class CatalogClient:
    """A client of one catalog's server, on one event loop. ``clock`` gives epoch seconds.

    The methods raise :class:`TransientError` when all attempts failed in ways that may heal,
    :class:`TableError` for a refusal, :class:`ConfigError` for credentials that are not accepted.
    """

    def __init__(self, options: CatalogOptions, clock: Callable[[], float] = time.time) -> None:
        self.options = options
        self._clock = clock
        endpoint = options.endpoint or ""
        self._sessions = Sessions(endpoint, options.ca_file, _TIMEOUT_S)
        credentials = options.find_credentials()
        self._authorization: Authorization | None = None
        if credentials is not None:
            profile = Profile(endpoint, credentials, f"of the catalog at {endpoint}")
            self._authorization = Authorization(profile, clock)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._sessions.aclose()

    # Tables

    async def load_table(self, name: TableName) -> CatalogTable:
        """Return what a name stands for now."""
        try:
            return table_of(name, await self._send_request(Loaded, _delta_path(name), name))
        except _Refused as e:
            raise await self._explain_refusal(e, name) from None

    async def request_credentials(self, name: TableName) -> Sequence[VendedCredential]:
        """Return credentials to read the files of a table that is there."""
        path = f"{_delta_path(name)}/credentials?operation=READ"
        try:
            found = await self._send_request(TableCredentials, path, name)
            return [parse_credential(one) for one in found.storage_credentials]
        except _Refused as e:
            if e.status != 404:
                raise e.at(table=f"uc://{name}") from None
            await self.load_table(name)  # it may be gone by now
            raise TableError(
                f"the catalog at {self.options.endpoint} vends no credential for its files",
                table=f"uc://{name}",
                hint="check that its location is in an external location of the catalog, which has "
                "a storage credential",
            ) from None

    async def list_schemas(self, catalog: str) -> list[str]:
        """Return the names of a catalog's schemas."""
        query = {"catalog_name": catalog}
        pages = self._list_items(Schemas, "/schemas", query, lambda page: page.schemas or [])
        found = sorted([one.name async for one in pages])
        if not found:
            await self._check_there(catalog)
        return found

    async def list_tables(self, catalog: str, schema: str) -> list[str]:
        """Return the names of a schema's Delta tables."""
        query = {"catalog_name": catalog, "schema_name": schema}
        pages = self._list_items(TablePage, "/tables", query, lambda page: page.tables or [])
        found = [one async for one in pages]
        if not found:
            await self._check_there(catalog, schema)
        return sorted(one.name for one in found if one.data_source_format == "DELTA")

    async def _check_there(self, catalog: str, schema: str | None = None) -> None:
        """Raise :class:`TableError` if there is no such catalog or schema: a server may list what
        is in it all the same, as nothing."""
        missing = await self._missing_part(catalog, schema)
        if missing is not None:
            raise self._make_missing_error(missing)

    async def _list_items(
        self,
        kind: type[Any],
        path: str,
        query: Mapping[str, str],
        items: Callable[[Any], Sequence[Any]],
    ) -> AsyncIterator[Any]:
        token, rounds = "", Rounds()
        while True:
            more = {"page_token": token} if token else {}
            asked = urlencode({**query, "max_results": _PAGE_ITEMS, **more})
            subject = ".".join(query.values())
            try:
                page = await self._send_request(kind, f"{path}?{asked}", subject)
            except _Refused as e:
                if e.status == 404:
                    await self._check_there(query["catalog_name"], query.get("schema_name"))
                raise
            found = items(page)
            for item in found:
                yield item
            token = page.next_page_token or ""
            if not token:
                return
            if rounds.add_token(token, empty=not found):
                raise TransientError(f"the pages of {path} form a loop")

    async def _explain_refusal(self, error: _Refused, name: TableName) -> TableError:
        """Return the error for a refusal, with the part of the name that is not there."""
        address = f"uc://{name}"
        if error.kind == "UnsupportedTableFormatException":
            return TableError("the catalog says that it is no Delta table", table=address)
        if error.status in (404, 405, 501) and not error.kind.endswith("Exception"):
            return TableError(
                f"the catalog at {self.options.endpoint} has no Delta API",
                table=address,
                hint="use a server with /delta/v1, or the table's own address",
            )
        if error.status != 404:
            return error.at(table=address)
        missing = await self._missing_part(name.catalog, name.schema) or f"table {name}"
        return self._make_missing_error(missing).at(table=address)

    async def _missing_part(self, catalog: str, schema: str | None) -> str | None:
        """Return which part of a name the server does not know, as ``schema main.sales``.

        None if it has them.
        """
        parts = [("catalog", catalog, f"/catalogs/{_quote_part(catalog)}")]
        if schema is not None:
            both = f"{catalog}.{schema}"
            parts.append(("schema", both, f"/schemas/{_quote_part(both)}"))
        for kind, part, path in parts:
            try:
                await self._send_request(Named, path, part)
            except _Refused as e:
                if e.status == 404:
                    return f"{kind} {part}"
                break
        return None

    def _make_missing_error(self, what: str) -> TableError:
        return TableError(
            f"the catalog at {self.options.endpoint} has no {what}",
            hint=f"check the name, and that {self.options.account} may see it",
        )

    # Requests

    async def _send_request(self, kind: type[T], path: str, subject: object) -> T:
        backoff = Backoff(_PAUSE_MIN_S, _PAUSE_MAX_S)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return await self._send_once(kind, path, subject)
            except TransientError as e:
                wish_s = e.retry_after_s
                if attempt == _ATTEMPTS or (wish_s or 0.0) > _RETRY_AFTER_HERE_S:
                    raise
                await asyncio.sleep(backoff.next_s(wish_s))
        raise AssertionError

    async def _send_once(self, kind: type[T], path: str, subject: object) -> T:
        what = f"the catalog at {self.options.endpoint}, asked for {subject}"
        headers = {"Accept": "application/json"}
        async with send_request(
            self._sessions, self._authorization, "GET", self.options.api + path,
            what=what, address="the option 'endpoint'", headers=headers,
        ) as response:  # fmt: skip
            status, wish = response.status, response.headers.get("Retry-After")
            if status == 200:
                return _decode_answer(kind, await _read_body(response, what), what)
            said = await read_at_most(response, _ERROR_BYTES_MAX)
        raise self._make_refusal(
            what, subject, status, said, parse_retry_after(wish, self._clock())
        )

    def _make_refusal(
        self, what: str, subject: object, status: int, body: bytes, wish_s: float | None
    ) -> Exception:
        kind, message = _parse_error(body)
        sentence = f"{what}, answered {status}" + (
            f" ({printable(message, 300)})" if message else ""
        )
        if may_heal_status(status):
            return TransientError(sentence, wish_s)
        account = self.options.account
        if status == 401:
            fixed = isinstance(self.options.find_credentials(), BearerToken)
            remedy = "it has expired or is not valid: get another" if fixed else "give a token"
            return ConfigError(f"{sentence}: it does not accept {account}; {remedy}")
        hint = None
        if status == 403:
            hint = (
                f"grant {account} USE CATALOG, USE SCHEMA and SELECT on {subject}, and on "
                "Databricks EXTERNAL USE SCHEMA"
            )
        elif status in (301, 302, 303, 307, 308):
            hint = "the endpoint has moved; tokens are not sent elsewhere"
        return _Refused(sentence, status, kind, hint)


async def _read_body(response: Any, what: str) -> bytes:
    try:
        return b"".join(await read_whole_body(response, _BYTES_MAX))
    except Oversize as e:
        raise TransientError(f"{what}, gave too large an answer: {e}") from None


def _decode_answer(kind: type[T], body: bytes, what: str) -> T:
    try:
        return json_decoder(kind).decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as e:
        # A proxy may answer in its place, with its own page and 200.
        raise TransientError(f"{what}, gave an answer that is not the API's: {e}") from None


def _parse_error(body: bytes) -> tuple[str, str]:
    """Return type and message of an error, in the form of either API."""
    try:
        document = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return "", ""
    if not isinstance(document, dict):
        return "", ""
    error = document.get("error")
    error = error if isinstance(error, dict) else document
    kind = error.get("type") or error.get("errorCode") or error.get("error_code") or ""
    return str(kind), str(error.get("message") or "")


def _delta_path(name: TableName) -> str:
    parts = (("catalogs", name.catalog), ("schemas", name.schema), ("tables", name.table))
    return "/delta/v1/" + "/".join(f"{kind}/{_quote_part(part)}" for kind, part in parts)


def _quote_part(text: str) -> str:
    return quote(text, safe="")
