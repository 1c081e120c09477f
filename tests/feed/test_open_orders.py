"""Orders of a feed, and the notices that end them."""

from __future__ import annotations

from tailer.changes import Notice, Offset
from tailer.feed.orders import Orders, ResnapshotRequest
from tailer.shape.expressions import parse_condition


def make_end(where: str | None) -> Notice:
    """What ends a resnapshot."""
    at, details = Offset(3), {"reason": "resnapshot", "version": 2, "where": where, "rows": 0}
    return Notice("snapshot_end", 3, 0, at, at, details)


def test_a_notice_ends_no_resnapshot_that_was_ordered_after_its_own_was_stopped() -> None:
    whole, part = ResnapshotRequest(), ResnapshotRequest(parse_condition("country = 'DE'"))
    orders = Orders(resnapshots=[whole])
    orders.resnapshots.clear()
    orders.resnapshots.append(part)
    assert orders.complete_order(make_end(None))
    assert orders.resnapshots == [part]
    assert orders.complete_order(make_end("country = 'DE'"))
    assert orders.resnapshots == []
