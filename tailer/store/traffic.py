"""Counters of the requests that stores make."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class Traffic:
    """Receives a call for every request of a store; this class ignores it."""

    def request(self, operation: str, status: str, received: int) -> None:
        """Record that a request was answered.

        ``operation`` is get, head, list, put or delete, ``status`` the HTTP status, or "failed"
        where there was no whole answer, and ``received`` the bytes of its body.
        """

    def retry(self, operation: str) -> None:
        """Record that a request is sent again."""


class StoreMetrics(Traffic):
    """The requests of all stores, as metric families of one registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        from prometheus_client import Counter  # `tail` has no registry

        self._requests = Counter(
            "tailer_store_requests", "Requests to object stores, by HTTP status or failed.",
            ["operation", "status"], registry=registry,
        )  # fmt: skip
        self._bytes = Counter(
            "tailer_store_bytes", "Bytes received from object stores.", registry=registry
        )
        self._retries = Counter(
            "tailer_store_retries", "Repeated requests to object stores.",
            ["operation"], registry=registry,
        )  # fmt: skip

    def request(self, operation: str, status: str, received: int) -> None:
        self._requests.labels(operation, status).inc()
        self._bytes.inc(received)

    def retry(self, operation: str) -> None:
        self._retries.labels(operation).inc()
