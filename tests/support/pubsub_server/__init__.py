"""The server of :mod:`tests.support.pubsub`, which Go builds; known without any client."""

from __future__ import annotations

from pathlib import Path

from tests.support.components import go_server

PROGRAM = "pubsubserver"
PUBSUB = go_server("pubsub", "the server of Pub/Sub", Path(__file__).parent, PROGRAM)
