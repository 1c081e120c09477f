"""A table, and the feed that keeps a copy of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import anyio
import pyarrow as pa

from tailer.changes import Offset
from tailer.cli.main import main
from tailer.config.feeds import load_config
from tailer.daemon.assembly import assemble_feed, make_feed_sink
from tailer.feed.run import run_feed
from tailer.sink import Sink
from tailer.testing.table import TableBuilder


@dataclass(frozen=True, slots=True)
class Copy:
    """A table, and the configuration of the feed ``orders`` that keeps its copy."""

    config: Path
    table: TableBuilder

    def make_sink(self) -> Sink:
        """The feed's sink, not opened."""
        loaded = load_config(self.config)
        return make_feed_sink(loaded, loaded.feeds["orders"])

    def deliver(self, last: int) -> None:
        """Run the feed up to a version."""
        loaded = load_config(self.config)
        anyio.run(
            lambda: run_feed(replace(assemble_feed(loaded, loaded.feeds["orders"]), last=last))
        )

    def move_back(self, version: int) -> None:
        """Make the copy say that it continues with a version that it has."""
        at = Offset(version, table_id=self.table.table_id)
        sink = self.make_sink()
        anyio.run(lambda: sink.set_offset("orders", at))

    def verify(self, *more: str) -> int:
        """The status of the command."""
        return main(["verify", str(self.config), "orders", *more])

    def rewind(self, to: str) -> int:
        """The status of the command."""
        return main(["offsets", "rewind", str(self.config), "orders", "--to", to])


def make_copy_of(
    folder: Path, sink: str, schema: pa.Schema, feed: str = 'from = "snapshot"', *, cdf: bool = True
) -> Copy:
    """A table that is not yet created, and a configuration with these options of the sink and the
    feed."""
    config = folder / "tailer.toml"
    config.write_text(
        f'[daemon]\nhttp = ""\n[feeds.orders]\ntable = "orders"\n{feed}\n'
        f"[feeds.orders.sink]\n{sink}\n"
    )
    return Copy(config, TableBuilder(folder / "orders", schema, cdf=cdf))
