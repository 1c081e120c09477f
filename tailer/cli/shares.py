"""What a Delta Sharing profile gives access to: ``tailer shares PROFILE``."""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from tailer.errors import ConfigError, printable
from tailer.sharing.client import ClientOptions, SharingClient
from tailer.sharing.http import SharingRefused
from tailer.sharing.model import Table
from tailer.sharing.profile import load_profile


async def shares(arguments: argparse.Namespace) -> int:
    """Print the tables of a profile as addresses, as they come; return the exit status."""
    if arguments.schema and not arguments.share:
        raise ConfigError("--schema names a schema of a share: give --share too")
    profile = load_profile(arguments.profile, allow_http=arguments.allow_http)
    options = ClientOptions(ca_file=arguments.ca_file)
    client = SharingClient(profile, time.time, options)
    try:
        async with aclosing(_list_shares(client, arguments.share)) as names:
            async for name in names:
                found = False
                async with aclosing(_list_tables(client, name, arguments.schema)) as tables:
                    async for table in tables:
                        found = True
                        print(_format_line(arguments, table))
                if not found and not arguments.json:
                    print(printable(f"{arguments.profile}#{name} has no tables"))
    finally:
        await client.aclose()
    return 0


async def _list_shares(client: SharingClient, name: str | None) -> AsyncGenerator[str, None]:
    if name is not None:
        yield name
        return
    async with aclosing(client.list_shares()) as shares:
        async for share in shares:
            yield share.name


async def _list_tables(
    client: SharingClient, share: str, schema: str | None
) -> AsyncGenerator[Table, None]:
    """Yield the tables of a share or of one schema; schema by schema if the server can't list all
    tables of a share."""
    if schema is not None:
        async with aclosing(client.list_tables(share, schema)) as tables:
            async for table in tables:
                yield table
        return
    started = False
    try:
        async with aclosing(client.list_all_tables(share)) as tables:
            async for table in tables:
                started = True
                yield table
    except SharingRefused as refusal:
        if started or refusal.status not in (404, 405, 501):
            raise
    else:
        return
    async with aclosing(client.list_schemas(share)) as schemas:
        async for one in schemas:
            async with aclosing(client.list_tables(share, one.name)) as tables:
                async for table in tables:
                    yield table


def _format_line(arguments: argparse.Namespace, table: Table) -> str:
    address = f"{arguments.profile}#{table}"
    if arguments.json:
        return json.dumps({"table": address, **table.to_json()})
    return printable(address)
