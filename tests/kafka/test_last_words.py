"""What a broker says before it hangs up reaches whoever waits for it."""

from __future__ import annotations

import select
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError
from kafka.net.compat import KafkaNetClient

from sinks.kafka.client.patched_client import attentive_client


def _until_ended(sock: socket.socket) -> None:
    """Wait until the peer's end of stream is here, whatever may lie before it."""
    ended = select.poll()
    ended.register(sock, getattr(select, "POLLRDHUP", select.POLLHUP))
    assert ended.poll(10_000)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("make", "first"),
    [(attentive_client, (b"no entry", False)), (KafkaNetClient, (b"no entry", True))],
)
def test_an_answer_is_heard_before_the_end(
    make: Callable[..., Any], first: tuple[bytes, bool]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        client = make(bootstrap_servers=[f"127.0.0.1:{port}"])
        manager = client._manager
        node = SimpleNamespace(host="127.0.0.1", port=port)
        transport = client._net.run(manager._build_transport, node)
        peer, _ = server.accept()
        with peer:
            peer.sendall(b"no entry")
        _until_ended(transport._sock)
        data, error = transport._sock_recv()
        # The library's own client drops the answer, since its reader looks at the error first.
        assert (data, error is not None) == first
        data, error = transport._sock_recv()
        assert data == b""
        assert isinstance(error, KafkaConnectionError)
        transport.close()
        client.close()
