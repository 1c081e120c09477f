"""Limits on the requests of each client, and the server's metrics.

Nothing here waits: a request is admitted or refused at once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from prometheus_client import Counter, Histogram

from tailer.http_server.connections import network_of
from tailer.share_server.config import RecipientLimits
from tailer.share_server.refusals import Refusal

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

#: Networks that are remembered; a forgotten one starts with a full bucket.
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

    def __init__(self, limits: RecipientLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self._clock = clock
        self._recipients: dict[str, _Party] = {}
        # Any client can be unknown: such networks are forgotten, recipients never are.
        self._strangers: OrderedDict[str, _Party] = OrderedDict()
        self._downloads: dict[str, int] = {}

    @contextmanager
    def admit_request(self, recipient: str) -> Iterator[None]:
        """Admit a recipient's request while the block runs.

        Raises a :class:`Refusal` (429) with the seconds to wait.
        """
        now = self._clock()
        party = self._recipients.setdefault(recipient, _Party(self.limits.burst, now))
        if party.under_way >= self.limits.concurrent:
            raise _make_rate_refusal("too many requests are under way", 1.0)
        self._spend_token(party, now)
        party.under_way += 1
        try:
            yield
        finally:
            party.under_way -= 1

    def count_guess(self, address: str | None) -> None:
        """Count a bad token or signature.

        Raises a :class:`Refusal` (429) if one network sends too many.
        """
        name, now = network_of(address), self._clock()
        party = self._strangers.setdefault(name, _Party(self.limits.burst, now))
        self._strangers.move_to_end(name)
        while len(self._strangers) > _STRANGERS_KEPT:
            self._strangers.popitem(last=False)
        self._spend_token(party, now)

    @contextmanager
    def count_download(self, recipient: str) -> Iterator[None]:
        """Count a file's download while the block runs.

        Raises a :class:`Refusal` (429) if a recipient has too many under way: each holds a file and
        a connection.
        """
        if self._downloads.get(recipient, 0) >= self.limits.downloads:
            raise _make_rate_refusal("too many downloads are under way", 1.0)
        self._downloads[recipient] = self._downloads.get(recipient, 0) + 1
        try:
            yield
        finally:
            self._downloads[recipient] -= 1

    def _spend_token(self, party: _Party, now: float) -> None:
        limits = self.limits
        party.tokens = min(limits.burst, party.tokens + (now - party.at) * limits.requests_per_s)
        party.at = now
        if party.tokens < 1:
            raise _make_rate_refusal(
                "too many requests", (1 - party.tokens) / limits.requests_per_s
            )
        party.tokens -= 1


def _make_rate_refusal(what: str, wait_s: float) -> Refusal:
    return Refusal(429, "RESOURCE_EXHAUSTED", f"{what}; try again later", wait_s)


class ShareMetrics:
    """The server's metrics for Prometheus: by endpoint and status, never by recipient or table."""

    def __init__(self, registry: CollectorRegistry) -> None:
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
