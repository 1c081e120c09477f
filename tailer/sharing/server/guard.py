"""Who may ask how often, and the record of who asked what.

Nothing here waits: a request is let in or refused at once.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
import json
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailer.errors import ConfigError
from tailer.sharing.server.config import Limits
from tailer.sharing.server.refusals import Refusal

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

__all__ = ["Audit", "RateLimits", "ShareMetrics"]

#: So many networks are remembered; a forgotten one starts with a full bucket.
_STRANGERS_KEPT = 10_000


@dataclass(slots=True)
class _Party:
    """One bucket: ``tokens`` left at ``at`` (seconds of the clock), and requests under way."""

    tokens: float
    at: float
    under_way: int = 0


class RateLimits:
    """A token bucket for each party: a recipient, or the network that a bad token came from.

    ``clock`` gives seconds that never go back. ``limits`` may be replaced at any time.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._recipients: dict[str, _Party] = {}
        # Anyone can be a stranger: they are forgotten, and never at the expense of a recipient.
        self._strangers: OrderedDict[str, _Party] = OrderedDict()
        self._downloads: dict[str, int] = {}

    @contextmanager
    def admit(self, recipient: str) -> Iterator[None]:
        """Let a recipient's request in while the block runs. Raises a :class:`Refusal` (429) with
        the seconds to wait."""
        now = self._clock()
        party = self._recipients.setdefault(recipient, _Party(self.limits.burst, now))
        if party.under_way >= self.limits.concurrent:
            raise _too_many("too many requests are under way", 1.0)
        self._spend(party, now)
        party.under_way += 1
        try:
            yield
        finally:
            party.under_way -= 1

    def guess(self, address: str | None) -> None:
        """Count a bad token or signature. Raises a :class:`Refusal` (429) where there are too many
        of one network."""
        name, now = _network(address), self._clock()
        party = self._strangers.setdefault(name, _Party(self.limits.burst, now))
        self._strangers.move_to_end(name)
        while len(self._strangers) > _STRANGERS_KEPT:
            self._strangers.popitem(last=False)
        self._spend(party, now)

    @contextmanager
    def download(self, recipient: str) -> Iterator[None]:
        """Count a file's download while the block runs. Raises a :class:`Refusal` (429) where a
        recipient has too many under way: each holds a file and a connection."""
        if self._downloads.get(recipient, 0) >= self.limits.downloads:
            raise _too_many("too many downloads are under way", 1.0)
        self._downloads[recipient] = self._downloads.get(recipient, 0) + 1
        try:
            yield
        finally:
            self._downloads[recipient] -= 1

    def _spend(self, party: _Party, now: float) -> None:
        limits = self.limits
        party.tokens = min(limits.burst, party.tokens + (now - party.at) * limits.requests_per_s)
        party.at = now
        if party.tokens < 1:
            raise _too_many("too many requests", (1 - party.tokens) / limits.requests_per_s)
        party.tokens -= 1


def _network(address: str | None) -> str:
    """What guesses are counted by: of IPv6 the /64, for that is what one subscriber has."""
    try:
        found = ipaddress.ip_address((address or "").partition("%")[0])
    except ValueError:
        return address or ""
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def _too_many(what: str, wait_s: float) -> Refusal:
    return Refusal(429, "RESOURCE_EXHAUSTED", f"{what}; try again later", wait_s)


class Audit:
    """One JSON line for each request: who, what, status and bytes; never a token or signature.

    ``wall`` gives epoch seconds. Raises :class:`ConfigError` for a file that can't be opened. What
    a full disk does not take goes to the server's log instead: no request is without a record.
    """

    def __init__(self, path: Path, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._path = path
        self._whole = True  # else the file ends within a line
        self._logger = logging.getLogger("tailer.share")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Unbuffered: what the disk did not take must not come again later.
            self._file = path.open("ab", buffering=0)
        except OSError as e:
            raise ConfigError(f"{path}: the audit log can't be written ({e.strerror})") from e

    def write(self, **facts: Any) -> None:
        """One line; facts that are None are left out."""
        moment = dt.datetime.fromtimestamp(self._wall(), dt.UTC)
        line = {"time": moment.isoformat(timespec="milliseconds")}
        line |= {key: value for key, value in facts.items() if value is not None}
        text = json.dumps(line).encode()
        try:
            left = memoryview(text + b"\n" if self._whole else b"\n" + text + b"\n")
            while left:
                left = left[self._file.write(left) :]
            self._whole = True
        except OSError as e:
            self._whole = False
            self._logger.error(  # noqa: TRY400  # no bug of ours
                "%s: the audit log can't be written (%s): %s",
                self._path, e.strerror, text.decode(),
            )  # fmt: skip

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class ShareMetrics:
    """What the server tells Prometheus: by endpoint and status, never by recipient or table."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter, Histogram

        self.requests = Counter(
            "tailer_share_requests", "Requests answered.", ["endpoint", "status"],
            registry=registry,
        )  # fmt: skip
        self.bytes = Counter(
            "tailer_share_sent_bytes", "Bytes of answers' bodies.", ["endpoint"], registry=registry
        )
        self.seconds = Histogram(
            "tailer_share_request_seconds", "From a request to the end of its answer.",
            ["endpoint"], registry=registry,
        )  # fmt: skip
