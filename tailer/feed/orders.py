"""What the operator orders of a feed: pauses, new schemas, skipped versions, snapshots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from tailer.changes import Notice, Offset
from tailer.delta.actions import LONG_MAX
from tailer.errors import ConfigError
from tailer.shape.expressions import Condition, parse_condition

#: How far ahead of the table's newest version one can be skipped: further is probably a typing
#: error.
SKIP_AHEAD_MAX = 1000


class ResnapshotRequest(Struct, frozen=True):
    """A request to read again the whole table, or the partitions that ``where`` selects."""

    where: Condition | None = None

    @property
    def text(self) -> str | None:
        """Return the condition as it was given."""
        return self.where.text if self.where else None


class Orders(Struct):
    """What a feed's operator has ordered, until it is done.

    ``paused`` means paused by the operator. ``accepted`` are versions whose new schema was
    accepted, ``skips`` are versions to skip.

    ``record_form`` is no order; it is only saved with them, as ``delivery``. It is the form of the
    records that the sink has got, if the sink leaves it to the feed to keep it
    (:meth:`tailer.sink.Sink.check_record_form`); empty before the first record.
    """

    paused: bool = False
    accepted: set[int] = field(default_factory=set)
    skips: set[int] = field(default_factory=set)
    resnapshots: list[ResnapshotRequest] = field(default_factory=list)
    record_form: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the open orders, for the feed's status."""
        orders = {
            "paused": self.paused,
            "accepted": sorted(self.accepted),
            "skips": sorted(self.skips),
            "resnapshots": [{"where": request.text} for request in self.resnapshots],
        }
        return {name: value for name, value in orders.items() if value}

    def to_saved_json(self) -> dict[str, Any]:
        """Return what is saved with the offset: the open orders and the form of the records."""
        found = self.to_json()
        return {**found, "delivery": dict(self.record_form)} if self.record_form else found

    def restore_orders(self, orders: Mapping[str, Any]) -> None:
        """Restore the orders given to an earlier owner of the feed, before the present orders."""
        self.paused = self.paused or bool(orders.get("paused"))
        self.accepted.update(orders.get("accepted", ()))
        self.skips.update(orders.get("skips", ()))
        wheres = [request.get("where") for request in orders.get("resnapshots", ())]
        self.record_form = orders.get("delivery") or self.record_form
        self.resnapshots[:0] = [
            ResnapshotRequest(parse_condition(w) if w else None) for w in wheres
        ]

    def check_skip(self, version: int, place: Offset | None, newest: int | None) -> None:
        """Raise :class:`ConfigError` for a version that is past, or too far ahead: it would be
        skipped unnoticed. ``place`` is where the feed is, ``newest`` the table's newest version;
        None means not known."""
        why = None
        if place is not None and (version < place.version or place.snapshot):
            where = ", in its snapshot" if place.snapshot else ""
            why = f"the feed is at version {place.version}{where}"
        elif version > LONG_MAX:
            why = f"no version is greater than {LONG_MAX}"
        elif newest is not None and version > newest + SKIP_AHEAD_MAX:
            why = (
                f"the table's newest version is {newest}, and a skip reaches at most "
                f"{SKIP_AHEAD_MAX} versions ahead of it"
            )
        if why is not None:
            raise ConfigError(f"version {version} can't be skipped: {why}")

    def take_back_skip(self, version: int) -> None:
        """Forget the order to skip a version. Raises :class:`ConfigError` if there is none."""
        if version not in self.skips:
            known = ", ".join(map(str, sorted(self.skips))) or "none"
            raise ConfigError(f"version {version} has no skip; the versions that have one: {known}")
        self.skips.discard(version)

    def complete_order(self, notice: Notice) -> bool:
        """Return whether a delivered notice shows that an order is done, and forget that order."""
        if notice.kind == "snapshot_end" and notice.details.get("reason") == "resnapshot":
            # Another one may be the first: this was stopped while its notice was delivered.
            first = next(iter(self.resnapshots), None)
            if first is not None and first.text == notice.details.get("where"):
                del self.resnapshots[0]
        elif notice.kind == "skipped_version":
            self.skips.discard(notice.version)
        else:
            return False
        return True
