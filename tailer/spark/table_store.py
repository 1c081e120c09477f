"""The store of a query's table, and the event loop, in its own thread, that serves it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import anyio
from anyio.from_thread import BlockingPortal

from tailer.spark.options import SourceOptions
from tailer.storage import open_store
from tailer.store import Store


def open_table(options: SourceOptions) -> Store:
    """Open the store of the query's table, with the query's options."""
    store = open_store(options.table, options.store)
    store.serve(options.change_source)
    return store


@contextmanager
def store_portal(
    options: SourceOptions, store: Store | None = None
) -> Iterator[tuple[BlockingPortal, Store]]:
    """Provide the table's store, or the one given for it, and the event loop that serves it, while
    the block runs."""
    with _run_loop() as portal:
        store = store or open_table(options)
        try:
            yield portal, store
        finally:
            if not sys.is_finalizing():  # then the loop's thread is gone
                portal.call(store.aclose)


@contextmanager
def _run_loop() -> Iterator[BlockingPortal]:
    """Run an event loop in a daemon thread: one that is not ended does not block process exit."""
    ready: Future[BlockingPortal] = Future()

    async def serve() -> None:
        async with BlockingPortal() as portal:
            ready.set_result(portal)
            await portal.sleep_until_stopped()

    thread = threading.Thread(target=anyio.run, args=(serve,), name="tailer-store", daemon=True)
    thread.start()
    portal = ready.result()
    try:
        yield portal
    finally:
        if not sys.is_finalizing():
            portal.call(portal.stop)
            thread.join()
