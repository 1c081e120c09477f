"""`tailer offsets`: show, set, rewind, reset, export and import the offset of a feed."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tailer.changes import Offset
from tailer.cli.feeds import find_feed
from tailer.config.feeds import Config, FeedConfig, load_config
from tailer.daemon.assembly import make_feed_sink, make_offset_store, make_table_log
from tailer.daemon.rewind import find_offset, rewind_feed, save_offset
from tailer.errors import ConfigError
from tailer.log.table import TableLog
from tailer.offsets import OffsetStore
from tailer.storage import open_store, storage_of
from tailer.store import Store


async def offsets(arguments: argparse.Namespace) -> int:
    """Run the command; return the exit status.

    A sink that keeps the progress with the data is changed first, because the feed starts from it.
    Raises :class:`ConfigError` for a feed that is not configured, or a missing argument.
    """
    config = load_config(Path(arguments.config))
    feed = await find_feed(config, arguments.feed)
    if arguments.action in ("show", "export"):
        return await _show_offset(config, arguments)
    if arguments.action == "import" and arguments.checkpoint is None:
        raise ConfigError("offsets import needs --checkpoint FOLDER, that of a Spark query")
    if arguments.action == "set" and arguments.start is None:
        raise ConfigError("offsets set needs --from WHERE, the next version to read")
    if arguments.action == "rewind" and arguments.to is None:
        raise ConfigError("offsets rewind needs --to WHERE, the version to go back to")
    store = make_offset_store(config, arguments.feed)
    await store.acquire()
    try:
        sink = make_feed_sink(config, feed)
        if arguments.action == "rewind":
            at, counts = await rewind_feed(config, feed, store, sink, arguments.to)
            if counts is not None:
                print(
                    f"the copy is the table's version {at.version - 1}: {counts.rows} rows "
                    f"written, {counts.removed} keys removed"
                )
        else:
            offset = await _choose_offset(arguments, config, feed, store, copies=sink.traits.copies)
            await save_offset(config, offset, feed, store, sink)
    finally:
        await store.release()
    done = {"import": "imported", "rewind": "rewound"}.get(arguments.action, arguments.action)
    print(f"the offset of {arguments.feed} is {done}", file=sys.stderr)
    return 0


async def _show_offset(config: Config, arguments: argparse.Namespace) -> int:
    """Print the saved offset, and the orders in force; `export` needs an offset."""
    store = make_offset_store(config, arguments.feed)
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


async def _choose_offset(
    arguments: argparse.Namespace, config: Config, feed: FeedConfig, kept: OffsetStore,
    *, copies: bool,
) -> Offset | None:  # fmt: skip
    """Return the offset to save; None to forget it. ``kept`` has the one of the feed now."""
    if arguments.action == "reset":
        return None
    if arguments.action == "set":
        return await find_offset(config, feed, arguments.start, arguments.index)
    log = make_table_log(config, feed)
    try:
        return await _import_offset(arguments, config, feed, log, kept, copies=copies)
    finally:
        await log.store.aclose()


async def _import_offset(
    arguments: argparse.Namespace, config: Config, feed: FeedConfig, log: TableLog,
    kept: OffsetStore, *, copies: bool,
) -> Offset:  # fmt: skip
    """Return where the query of a checkpoint stopped, and say what that means for the feed.

    Raises :class:`ConfigError` if the feed has taken over from Spark's own stream already.
    """
    from tailer.cli import checkpoint  # loads on demand

    store = _open_checkpoint_store(config, feed, arguments.checkpoint)
    try:
        found = await checkpoint.read_checkpoint(store)
    finally:
        await store.aclose()
    change_feed, options = arguments.read_change_feed, feed.options
    offset = await checkpoint.find_offset(
        log, found, options.change_source, change_feed=change_feed
    )
    if offset in found.places:  # of our own source, to which the feed was lent
        return offset
    if await kept.load() is not None:
        raise ConfigError(
            f"the feed {feed.name!r} has an offset already, and Spark's is not put in its place; "
            f"to lose it, run `tailer offsets reset {config.path} {feed.name}` first"
        )
    operations = options.selection.operations
    for sentence in (
        *found.list_sentences(),
        f"the feed continues with {checkpoint.describe_place(offset)}",
        *checkpoint.describe_difference(operations, change_feed=change_feed, copies=copies),
    ):
        print(sentence, file=sys.stderr)
    return offset


def _open_checkpoint_store(config: Config, feed: FeedConfig, address: str) -> Store:
    """Return the store of a checkpoint: with the feed's options, if its table is in such a one."""
    name = storage_of(address).name
    same = name == storage_of(feed.table).name
    return open_store(address, feed.store if same else config.stores.get(name, {}))
