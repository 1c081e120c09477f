"""A client of AWS Glue's Data Catalog: where the tables are that it names.

The requests are aiobotocore's: there are few of them, and the account is found as for S3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any, TypeVar

import anyio

from tailer.errors import TableError, TransientError
from tailer.store.s3.environment import S3Environment, unusable
from tailer.store.s3.options import S3Options

__all__ = ["GlueClient", "delta_location"]

T = TypeVar("T")

#: What Spark, crawlers and Athena write of a Delta table, by the parameter.
_FORMATS = ("spark.sql.sources.provider", "table_type", "classification", "provider")
#: The folder that Athena's older tables of Delta point to.
_SYMLINKS = "/_symlink_format_manifest"


class GlueClient:
    """A client with the account and the region of the options of S3, on one event loop.

    The methods raise :class:`TransientError` for what may heal, :class:`TableError` for a refusal,
    and the errors of :class:`tailer.store.s3.environment.S3Environment`.
    """

    def __init__(self, options: S3Options) -> None:
        self.options = options
        self._open = AsyncExitStack()
        self._lock = anyio.Lock()
        self._client: Any = None

    async def aclose(self) -> None:
        """Close the connections."""
        self._client = None
        await self._open.aclose()

    async def location(self, database: str, table: str) -> str:
        """Return where a Delta table is."""
        address = f"glue://{database}.{table}"

        async def ask(client: Any) -> Any:
            return await client.get_table(DatabaseName=database, Name=table)

        found = (await self._asked(address, ask))["Table"]
        location = delta_location(found)
        if location is None:
            parameters = found.get("Parameters") or {}
            kind = next((parameters[key] for key in _FORMATS if parameters.get(key)), "unknown")
            raise TableError(
                f"AWS Glue says that its format is {kind}, and only Delta is read", table=address
            )
        return location

    async def databases(self) -> list[str]:
        """Return the names of the databases."""
        pages = self._pages("get_databases", "glue://*", {}, "DatabaseList")
        return sorted([one["Name"] async for one in pages])

    async def tables(self, database: str) -> list[str]:
        """Return the names of a database's Delta tables."""
        pages = self._pages(
            "get_tables", f"glue://{database}.*", {"DatabaseName": database}, "TableList"
        )
        return sorted([one["Name"] async for one in pages if delta_location(one) is not None])

    async def _pages(
        self, operation: str, address: str, query: dict[str, str], key: str
    ) -> AsyncIterator[Any]:
        token = ""
        while True:
            more = {**query, "NextToken": token} if token else query

            async def ask(client: Any, more: dict[str, str] = more) -> Any:
                return await getattr(client, operation)(**more)

            page = await self._asked(address, ask)
            for item in page.get(key, ()):
                yield item
            token = page.get("NextToken") or ""
            if not token:
                return

    async def _asked(self, address: str, ask: Callable[[Any], Awaitable[T]]) -> T:
        from botocore import exceptions as errors

        try:
            return await ask(await self._connected())
        except errors.ClientError as e:
            raise _refusal(address, e.response) from e
        except (errors.HTTPClientError, errors.ConnectionError) as e:
            raise TransientError(f"{address}: AWS Glue can't be reached ({e})") from e
        except (errors.BotoCoreError, OSError) as e:
            raise unusable(e, "AWS Glue") from e

    async def _connected(self) -> Any:
        async with self._lock:
            if self._client is None:
                from aiobotocore.session import AioSession

                own = self.options
                environment = S3Environment(own)
                session = AioSession(profile=own.profile)
                created = session.create_client(
                    "glue",
                    region_name=environment.region(),
                    aws_access_key_id=own.access_key_id,
                    aws_secret_access_key=own.secret_access_key,
                    aws_session_token=own.session_token,
                    verify=environment.authorities(),
                )
                self._client = await self._open.enter_async_context(created)
            return self._client


def delta_location(table: Any) -> str | None:
    """Return where a table is by what Glue says of it; None if it is not a Delta table."""
    parameters = table.get("Parameters") or {}
    if not any(str(parameters.get(key, "")).lower() == "delta" for key in _FORMATS):
        return None
    storage = table.get("StorageDescriptor") or {}
    # Spark's own path; the location beside it may be a placeholder.
    path = ((storage.get("SerdeInfo") or {}).get("Parameters") or {}).get("path")
    location = str(path or storage.get("Location") or "").rstrip("/").removesuffix(_SYMLINKS)
    return location or None


def _refusal(address: str, response: Any) -> TableError | TransientError:
    error = response.get("Error", {})
    code, message = str(error.get("Code", "")), str(error.get("Message", ""))
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    sentence = f"AWS Glue refused to say where it is ({code}: {message})"
    if (
        status >= 500
        or "Throttling" in code
        or code in ("RequestTimeout", "ConcurrentRunsExceeded")
    ):
        return TransientError(f"{address}: {sentence}")
    hint = "check the account and its region"
    if code == "EntityNotFoundException":
        sentence, hint = "AWS Glue has no such table", "check database, table and region"
    elif "AccessDenied" in code:
        hint = "grant glue:GetTable, glue:GetTables and glue:GetDatabases"
    elif "Expired" in code:
        hint = "get new credentials"
    return TableError(sentence, table=address, hint=hint)
