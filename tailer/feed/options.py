"""The options of a feed: how it reads, publishes and retries."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct, structs

from tailer.changes import counting_id
from tailer.decode.options import DiffOptions
from tailer.decode.rows import DecodeOptions
from tailer.feed.policy import Policies
from tailer.log.follow import FollowOptions
from tailer.network.backoff import Backoff
from tailer.plan.rules import ChangeSource
from tailer.shape.selection import Selection
from tailer.sink import Sink


class RetryOptions(Struct, frozen=True):
    """Bounded, jittered back-off after a :class:`TransientError`, in seconds. It starts at
    ``pause_min_s``, or at ``pause_max_s`` if that is less."""

    pause_min_s: float = 0.2
    pause_max_s: float = 30.0

    def make_backoff(self, jitter: Callable[[], float]) -> Backoff:
        """Return the pauses of one series of attempts."""
        return Backoff(min(self.pause_min_s, self.pause_max_s), self.pause_max_s, jitter)


class FeedOptions(Struct, frozen=True):
    """How changes are found, decoded and selected, and what happens when that fails.

    ``key`` names the columns by which derived changes without row ids are paired into updates.
    ``paired`` gives each update as one row with its preimage in ``ChangeBatch.before``. A sink can
    require this (:class:`tailer.sink.SinkTraits`); then the feed pairs updates by the sink's
    ``key_columns`` unless it has a ``key``. ``spans`` gives the rows of small files and versions
    together (:attr:`tailer.changes.ChangeBatch.span`) to a sink that takes them. ``keys`` are all
    columns that the feed or its sink takes for keys. A heartbeat is sent after ``heartbeat_s``
    seconds without another item; 0 means no heartbeats.
    """

    change_source: ChangeSource = "auto"
    key: tuple[str, ...] = ()
    diff: DiffOptions = DiffOptions()
    decode: DecodeOptions = DecodeOptions()
    follow: FollowOptions = FollowOptions()
    retry: RetryOptions = RetryOptions()
    selection: Selection = Selection()
    policies: Policies = Policies()
    heartbeat_s: float = 0.0
    paired: bool = False
    spans: bool = False
    keys: frozenset[str] = frozenset()

    def for_sink(self, sink: Sink) -> FeedOptions:
        """Return the same options for a sink: with its key and spans, and with row ids and paired
        updates if it requires them."""
        traits = sink.traits
        keys = frozenset({*self.key, *traits.key_columns})
        options = structs.replace(self, spans=traits.spans, keys=keys)
        if traits.paired or traits.row_ids:
            options = structs.replace(options, decode=structs.replace(self.decode, row_ids=True))
        if not traits.paired:
            return options
        return structs.replace(options, paired=True, key=self.key or traits.key_columns)

    def counting_id(self) -> str:
        """Return an id of the options that determine how the changes of a version are counted."""
        where = self.selection.where.text if self.selection.where else None
        # The ids of saved offsets contain two former options, always as False.
        return counting_id(self.change_source, self.key, where, False, False)
