"""Servers that lie in a daemon with limited memory: each feed says what it waits for, tries again,
and has every row when its server tells the truth. ``python -m tests.hostile.peer_trial`` tries all
lies one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.hostile.peer_trial import RESIDENT_MIB_MAX, Trial, trying
from tests.support.link import running_link
from tests.torture.servers import Peer, Servers

pytestmark = [pytest.mark.timeout(600), pytest.mark.needs("moto", "pubsub")]

#: The session's own servers.
_FIXTURES = {"redis": "redis_server", "nats": "nats_server", "rabbitmq": "rabbitmq_server"}
#: What each says, one after the other: what once stopped its feed, held it or took its memory.
LIES = {
    "postgres": ("a length of 2 GiB, and all bytes", "rows of no columns", "garbage"),
    "mysql": ("the server wants a local file", "garbage without end", "TLS"),
    "redis": ("a text of error of a megabyte", "a length of 2 GiB, and all bytes", "no list"),
    "nats": ("a length of 2 GiB, then silence", "an odd error", "INFO for ever"),
    "rabbitmq": ("heartbeats for ever", "garbage", "a length of 2 GiB, and all bytes"),
    "pubsub": ("success before the request", "garbage", "a length of 2 GiB, and all bytes"),
    "sqs": ("a length of 2 GiB, and all bytes", "200 with nothing", "JSON nested 100,000 deep"),
    "http": ("chunks without end", "100 Continue for ever", "headers without end"),
    "uc": ("200 with a page", "a length of 2 GiB, then the end", "chunks without end"),
}


class SessionServers(Servers):
    """The servers that the tests' fixtures have started."""

    def __init__(self, stack: ExitStack, folder: Path, request: pytest.FixtureRequest) -> None:
        super().__init__(stack, folder)
        self._request, self._own = request, stack

    def peer(self, name: str) -> Peer:
        """See :class:`tests.torture.servers.Servers`."""
        if name == "http":
            return super().peer(name)
        server = self._request.getfixturevalue(_FIXTURES.get(name, name))
        return Peer(server, self._own.enter_context(running_link(server.port)))


@pytest.fixture
def trial(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Trial]:
    """A daemon with a feed for each server."""
    for name in Servers.environment:
        monkeypatch.setenv(name, "")  # it is set by them, and restored here
    with ExitStack() as stack:
        servers = SessionServers(stack, tmp_path, request)
        yield stack.enter_context(trying(list(LIES), tmp_path, servers))


@pytest.mark.slow
def test_feeds_wait_for_servers_that_lie(trial: Trial) -> None:
    for number in range(3):
        seen = trial.lie({kind: names[number] for kind, names in LIES.items()})
        assert max(one.peak_mib for one in seen.values()) <= RESIDENT_MIB_MAX, seen
        # A webhook's status alone counts.
        assert all(one.said != "delivered" for kind, one in seen.items() if kind != "http"), seen
