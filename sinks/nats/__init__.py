"""The NATS sink."""

from __future__ import annotations

from sinks.nats.sink import SETTINGS, NatsSink

__all__ = ["SETTINGS", "NatsSink"]
