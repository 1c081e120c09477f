"""A broker that lies: the feed tries again, in bounded memory. ``tests/hostile/test_peers.py`` has
the other servers."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.peer_trial import RESIDENT_MIB_MAX, trying
from tests.kafka.broker import Broker
from tests.support.link import running_link
from tests.torture.servers import Peer, Servers


class _Servers(Servers):
    """The session's broker, which names the link as its own address."""

    def __init__(self, stack: ExitStack, folder: Path, broker: Broker) -> None:
        super().__init__(stack, folder)
        port = int(broker.bootstrap.rpartition(":")[2])
        self._broker = Peer(broker, stack.enter_context(running_link(port, moved=True)))

    def peer(self, name: str) -> Peer:  # noqa: ARG002  # there is one
        """See :class:`tests.torture.servers.Servers`."""
        return self._broker


def test_a_feed_waits_for_a_broker_that_lies(
    tmp_path: Path, kafka: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in Servers.environment:
        monkeypatch.setenv(name, "")  # it is set by them, and restored here
    with ExitStack() as stack:
        servers = _Servers(stack, tmp_path, kafka)
        trial = stack.enter_context(trying(["kafka"], tmp_path, servers))
        for name in ("garbage", "a compact list of 2^31"):
            seen = trial.lie({"kafka": name})
            assert seen["kafka"].peak_mib <= RESIDENT_MIB_MAX, seen
