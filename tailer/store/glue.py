"""A client of AWS Glue's Data Catalog: where the tables are that it names.

The requests are aiobotocore's: there are few of them, and the account is found as for S3.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

import anyio

from tailer.errors import TableError, TransientError
from tailer.store.s3.environment import S3Environment, make_unusable_error
from tailer.store.s3.options import S3Options

T = TypeVar("T")

#: What Spark, crawlers and Athena write of a Delta table, by the parameter.
_FORMATS = ("spark.sql.sources.provider", "table_type", "classification", "provider")
#: The folder that Athena's older tables of Delta point to.
_SYMLINKS = "/_symlink_format_manifest"

_NOT_FOUND = "EntityNotFoundException"


class GlueClient:
    """A client with the account and the region of the options of S3, on one event loop.

    The methods raise :class:`TransientError` for what may heal, :class:`TableError` for a refusal,
    and the errors of :class:`tailer.store.s3.environment.S3Environment`.
    """

    def __init__(self, options: S3Options) -> None:
        self.options = options
        self._open = AsyncExitStack()
        self._lock = anyio.Lock()
        #: By the region of what is asked for; "" is that of the options.
        self._clients: dict[str, Any] = {}

    async def aclose(self) -> None:
        """Close the connections."""
        self._clients.clear()
        await self._open.aclose()

    async def find_location(self, database: str, table: str) -> str:
        """Return where a Delta table is."""
        address = f"glue://{database}.{table}"
        found = await self._load_table(address, {"DatabaseName": database, "Name": table})
        location = delta_location(found)
        if location is None and (target := found.get("TargetTable")):
            # AWS itself says of a link where its target is, if the account may know.
            found = await self._load_table(address, target)
            location = delta_location(found)
        if location is None:
            if found.get("TargetTable"):
                raise TableError(
                    "it is a resource link to another resource link", table=address,
                    hint="link to the table itself",
                )  # fmt: skip
            parameters = found.get("Parameters") or {}
            kind = next((parameters[key] for key in _FORMATS if parameters.get(key)), "unknown")
            raise TableError(
                f"AWS Glue says that its format is {kind}, and only Delta is read", table=address
            )
        return location

    async def list_databases(self) -> list[str]:
        """Return the names of the databases."""
        pages = self._list_items("get_databases", "glue://*", {}, "DatabaseList")
        return sorted([one["Name"] async for one in pages])

    async def list_tables(self, database: str) -> list[str]:
        """Return the names of a database's Delta tables."""
        address, of = f"glue://{database}.*", {"DatabaseName": database}
        found = [one async for one in self._list_items("get_tables", address, of, "TableList")]
        if not found and (target := await self._find_target(address, of)):
            region = target.pop("Region", "")
            pages = self._list_items("get_tables", address, target, "TableList", region)
            found = [one async for one in pages]
        return sorted([one["Name"] for one in found if await self._is_delta(database, one)])

    async def _is_delta(self, database: str, table: Any) -> bool:
        """Return whether a table is one of Delta, or a link to one that the account may see."""
        if delta_location(table) is not None or not table.get("TargetTable"):
            return delta_location(table) is not None
        with suppress(TableError):
            return bool(await self.find_location(database, table["Name"]))
        return False

    async def _load_table(self, address: str, place: Mapping[str, str]) -> Any:
        """Return what Glue says of a table; that of its database's target if the database is a
        link, and Glue has not followed it."""
        named = dict(place)
        region = named.pop("Region", "")

        async def ask(client: Any) -> Any:
            return (await client.get_table(**named))["Table"]

        try:
            return await self._send_request(address, ask, region)
        except TableError as e:
            if _find_error_code(e.__cause__) != _NOT_FOUND or not (
                target := await self._find_target(address, place)
            ):
                raise
        region = target.pop("Region", "")
        named |= target
        return await self._send_request(address, ask, region)

    async def _find_target(self, address: str, place: Mapping[str, str]) -> dict[str, str]:
        """Return the database to which the database of a place is a link; empty if it is none, or
        is not to be seen."""
        of = {"CatalogId": place["CatalogId"]} if place.get("CatalogId") else {}

        async def ask(client: Any) -> Any:
            return (await client.get_database(Name=place.get("DatabaseName", ""), **of))["Database"]

        with suppress(TableError):
            return dict(
                (await self._send_request(address, ask, place.get("Region", ""))).get(
                    "TargetDatabase"
                )
                or {}
            )
        return {}

    async def _list_items(
        self, operation: str, address: str, query: dict[str, str], key: str, region: str = ""
    ) -> AsyncIterator[Any]:
        token = ""
        while True:
            more = {**query, "NextToken": token} if token else query

            async def ask(client: Any, more: dict[str, str] = more) -> Any:
                return await getattr(client, operation)(**more)

            page = await self._send_request(address, ask, region)
            for item in page.get(key, ()):
                yield item
            token = page.get("NextToken") or ""
            if not token:
                return

    async def _send_request(
        self, address: str, ask: Callable[[Any], Awaitable[T]], region: str = ""
    ) -> T:
        from botocore import exceptions as errors

        try:
            return await ask(await self._open_client(region))
        except errors.ClientError as e:
            raise _make_refusal(address, e.response) from e
        except (errors.HTTPClientError, errors.ConnectionError) as e:
            raise TransientError(f"{address}: AWS Glue can't be reached ({e})") from e
        except errors.ParamValidationError as e:  # by what a link says
            raise TableError("it is a resource link without a target", table=address) from e
        except (errors.BotoCoreError, OSError) as e:
            raise make_unusable_error(e, "AWS Glue") from e

    async def _open_client(self, region: str) -> Any:
        async with self._lock:
            if region not in self._clients:
                from aiobotocore.session import AioSession

                own = self.options
                environment = S3Environment(own)
                session = AioSession(profile=own.profile)
                created = session.create_client(
                    "glue",
                    region_name=region or environment.find_region(),
                    aws_access_key_id=own.access_key_id,
                    aws_secret_access_key=own.secret_access_key,
                    aws_session_token=own.session_token,
                    verify=environment.find_authorities(),
                )
                self._clients[region] = await self._open.enter_async_context(created)
            return self._clients[region]


def delta_location(table: Any) -> str | None:
    """Return the location in Glue's description of a table; None if it is not a Delta table."""
    parameters = table.get("Parameters") or {}
    if not any(str(parameters.get(key, "")).lower() == "delta" for key in _FORMATS):
        return None
    storage = table.get("StorageDescriptor") or {}
    # Spark's own path; the location beside it may be a placeholder.
    path = ((storage.get("SerdeInfo") or {}).get("Parameters") or {}).get("path")
    location = str(path or storage.get("Location") or "").rstrip("/").removesuffix(_SYMLINKS)
    return location or None


def _find_error_code(error: BaseException | None) -> str:
    return str(getattr(error, "response", {}).get("Error", {}).get("Code", ""))


def _make_refusal(address: str, response: Any) -> TableError | TransientError:
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
    if code == _NOT_FOUND:
        sentence, hint = "AWS Glue has no such table", "check database, table and region"
    elif "AccessDenied" in code:
        hint = "grant glue:GetTable, glue:GetTables, glue:GetDatabase and glue:GetDatabases"
    elif "Expired" in code:
        hint = "get new credentials"
    return TableError(sentence, table=address, hint=hint)
