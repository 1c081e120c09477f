"""`tailer offsets`: show, set, reset, export and import the offset that a feed continues from."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from msgspec import structs

from tailer.changes import Offset
from tailer.cli.feeds import named_feed
from tailer.config.feeds import Config, FeedConfig, load_config
from tailer.daemon.assembly import feed_sink, offset_store, table_log
from tailer.errors import ConfigError
from tailer.log.starts import start_to_keep


async def offsets(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status.

    A sink that keeps the progress with the data is changed first, because the feed starts from it.
    Raises :class:`ConfigError` for a feed that is not configured, or a missing argument.
    """
    config = load_config(Path(arguments.config))
    feed = await named_feed(config, arguments.feed)
    if arguments.action in ("show", "export"):
        return await _show(config, arguments)
    if arguments.action == "import" and arguments.checkpoint is None:
        raise ConfigError("offsets import needs --checkpoint FOLDER, that of a Spark query")
    if arguments.action == "set" and arguments.start is None:
        raise ConfigError("offsets set needs --from WHERE, the next version to read")
    store = offset_store(config, arguments.feed)
    await store.acquire()
    try:
        offset = await _wanted(arguments, config, feed)
        sink = feed_sink(config, feed)
        await sink.set_offset(arguments.feed, offset)
        if offset is None:
            # A feed that its operator has paused stays paused; all other orders are dropped.
            paused = (await store.load_orders()).get("paused")
            await store.clear()
            if paused:
                await store.save_orders({"paused": True})
        else:
            await store.save(offset)
            orders = dict(await store.load_orders())
            if orders.pop("delivery", None):  # from here on the sink's options say it
                await store.save_orders(orders)
    finally:
        await store.release()
    print(f"the offset of {arguments.feed} is {arguments.action}", file=sys.stderr)
    return 0


async def _show(config: Config, arguments: argparse.Namespace) -> int:
    """Print the saved offset, and the orders in force; `export` needs an offset."""
    store = offset_store(config, arguments.feed)
    offset, orders = await store.load(), await store.load_orders()
    if offset is None and arguments.action == "export":
        raise ConfigError(f"the feed {arguments.feed!r} has no saved offset to export")
    orders.pop("delivery", None)  # not an order
    if arguments.json:
        known = None if offset is None else json.loads(str(offset))
        print(json.dumps({"feed": arguments.feed, "offset": known, "orders": orders}))
        return 0
    print("none" if offset is None else offset)
    if orders:
        print(f"orders: {json.dumps(orders)}", file=sys.stderr)
    return 0


async def _wanted(arguments: argparse.Namespace, config: Config, feed: FeedConfig) -> Offset | None:
    """Return the offset to save; None to forget it."""
    if arguments.action == "reset":
        return None
    if arguments.action == "import":
        from tailer.cli.spark import checkpoint_offset

        return checkpoint_offset(Path(arguments.checkpoint))
    log = table_log(config, feed)
    try:
        return structs.replace(await start_to_keep(log, arguments.start), index=arguments.index)
    finally:
        await log.store.aclose()
