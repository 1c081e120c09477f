"""Queries to ClickHouse over HTTP, and what its answers mean."""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import msgspec
import pyarrow as pa

from sinks.clickhouse.columns import quote_name
from sinks.messages.http_session import HttpClient
from tailer.errors import ConfigError, TailerError, TransientError
from tailer.network.http_answers import BodyParts, read_at_most, read_whole_body
from tailer.secrets import hide_secrets
from tailer.sink import FaultTable

#: By the name of the server's error, or by the status of an answer that has none. What is not here
#: passes: memory, disks, quotas, replicas, a table that is read-only or has too many parts.
FAULTS = FaultTable(
    for_good="""
        3* 401 403 404 405 407 410 ACCESS_DENIED AUTHENTICATION_FAILED REQUIRED_PASSWORD
        WRONG_PASSWORD UNKNOWN_USER UNKNOWN_DATABASE UNKNOWN_TABLE TABLE_ALREADY_EXISTS
        UNKNOWN_SETTING SETTING_CONSTRAINT_VIOLATION NO_SUCH_COLUMN_IN_TABLE UNKNOWN_IDENTIFIER
        DUPLICATE_COLUMN ILLEGAL_COLUMN SYNTAX_ERROR UNKNOWN_FORMAT UNKNOWN_TYPE
        SUPPORT_IS_DISABLED NOT_IMPLEMENTED ALTER_OF_COLUMN_IS_FORBIDDEN ARGUMENT_OUT_OF_BOUND
    """,
    unclear="BAD_ARGUMENTS INCORRECT_DATA TYPE_MISMATCH CANNOT_CONVERT_TYPE",
    rows="VIOLATED_CONSTRAINT VALUE_IS_OUT_OF_RANGE_OF_DATA_TYPE",
)
#: The constraint of a copy that what was sent before a reset does not meet.
ERA_CHECK = "delta_tailer_era"
_LOGIN_FAULTS = ("401", "403", "ACCESS_DENIED", "AUTHENTICATION_FAILED", "REQUIRED_PASSWORD")
_ERROR = re.compile(r"Code: \d+\. .*\(([A-Z][A-Z0-9_]+)\)(?: \(version [^)]*\))?\s*$", re.DOTALL)
_ANSWER_BYTES_MAX = 16 * 1024**2
_SAID_CHARACTERS, _SAID_BYTES = 500, 16 * 1024
#: Of every query: what a user's profile may have set otherwise, and changes what rows are read, how
#: an answer looks, or what a statement does.
_EVERY = {
    "final": "0", "limit": "0", "offset": "0", "use_query_cache": "0", "alter_sync": "1",
    "result_overflow_mode": "throw", "read_overflow_mode": "throw",
    "aggregate_functions_null_for_empty": "0", "empty_result_for_aggregation_by_empty_set": "0",
    "output_format_json_quote_64bit_integers": "0", "output_format_json_array_of_rows": "0",
    "data_type_default_nullable": "0",
}  # fmt: skip
#: The answer comes when all is done, so that its status counts.
_WHOLE = {"wait_end_of_query": "1"}
#: Of an insert: it is durable when it is answered; a block that was there before is written
#: again, for its rows may be gone meanwhile; null stays null; and no keys are merged, for a batch
#: has each once.
_INSERT = {
    "async_insert": "0", "insert_deduplicate": "0", "input_format_null_as_default": "0",
    "optimize_on_insert": "0",
}  # fmt: skip
#: Of a read: texts are bytes, which need not be UTF-8.
_READ = {"output_format_arrow_string_as_string": "0"}


class ClickHouseClient(HttpClient):
    """A connection to one server, or to the load balancer before it."""

    kind = "clickhouse"

    def _build_headers(self) -> Mapping[str, str]:
        user, password = self._url.user or "default", self._url.password or ""
        if not self._url.user and not password:
            return {}
        return {"X-ClickHouse-User": user, "X-ClickHouse-Key": password}

    async def run(self, statement: str) -> bytes:
        """Run a statement; return what it answers."""
        async with self._send(_WHOLE, statement.encode()) as answer:
            return b"".join(await read_whole_body(answer, _ANSWER_BYTES_MAX))

    async def ask(self, query: str) -> list[dict[str, Any]]:
        """Return the rows of a query, by the names of their columns."""
        lines = (await self.run(f"{query} FORMAT JSONEachRow")).splitlines()
        try:
            return [msgspec.json.decode(line, type=dict[str, Any]) for line in lines]
        except (msgspec.DecodeError, UnicodeDecodeError) as e:
            raise TransientError(f"{self.location}: an answer that is no JSON") from e

    async def insert_rows(self, table: str, rows: pa.Table) -> None:
        """Insert rows; they are durable when this returns. ``table`` is quoted. The columns are
        named, for a column of Arrow's that the table lacks would be passed over."""
        sink = pa.BufferOutputStream()
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with pa.ipc.new_stream(sink, rows.schema, options=options) as writer:
            writer.write_table(rows)
        columns = ", ".join(map(quote_name, rows.column_names))
        await self.insert(f"INSERT INTO {table} ({columns}) FORMAT ArrowStream", sink.getvalue())

    async def insert(self, statement: str, data: bytes | pa.Buffer) -> None:
        """Insert the rows of ``data``, which is in the format that the statement ends with. It
        stands before them: a URL has less room than the names of many columns need."""
        body = b"\n".join((statement.encode(), memoryview(data)))
        async with self._send({**_WHOLE, **_INSERT}, body) as answer:
            await read_whole_body(answer, _ANSWER_BYTES_MAX)

    async def stream(self, query: str) -> AsyncGenerator[bytes, None]:
        """Yield the rows of a query as a stream of Arrow's, in any pieces."""
        async with self._send(_READ, f"{query} FORMAT ArrowStream".encode()) as answer:
            async for part in BodyParts(answer):
                yield part

    @asynccontextmanager
    async def _send(
        self, query: Mapping[str, str], body: bytes
    ) -> AsyncGenerator[aiohttp.ClientResponse, None]:
        """Provide the answer of a request that went well."""
        name = secrets.token_hex(8)
        url = self._base.with_query({**_EVERY, **query, "query_id": name})
        async with self._request("POST", url, body) as answer:
            code = answer.headers.get("X-ClickHouse-Exception-Code")
            if answer.status != 200 or code is not None:
                said = (await read_at_most(answer, _SAID_BYTES)).decode(errors="replace")
                raise self._explain_error(answer.status, said, code)
            if answer.headers.get("X-ClickHouse-Query-Id") != name:
                raise TransientError(f"{self.location}: an answer that is not ClickHouse's")
            yield answer

    def _explain_error(self, status: int, said: str, code: str | None) -> TailerError:
        """Return our error of one of the server's; what it says may repeat a secret."""
        found = _ERROR.search(said)
        if f"{ERA_CHECK} " in said or f"`{ERA_CHECK}`" in said:
            return ConfigError(
                f"{self.location}: the table was made again since this process wrote to it, and "
                "another one writes it; stop one of them"
            )
        # An error whose name we can't read is none of a proxy's either.
        name = found[1] if found else str(status) if code is None else code
        text = f"{self.location}: {hide_secrets(' '.join(said.split()))[:_SAID_CHARACTERS]}"
        if found is None:
            text = f"{self.location}: answered {status} ({text.removeprefix(f'{self.location}: ')})"
        if name in _LOGIN_FAULTS:
            return ConfigError(f"{text}; check the user, the password and the user's grants")
        return FAULTS.error(name, text)
