"""What kafka-python leaves open: the socket of a connection that was refused, or whose client was
closed while it was made. The garbage collector closes it, in whatever test it runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kafka.net.inet import KafkaNetSocket


@contextmanager
def sockets_closed() -> Iterator[None]:
    """Close such a socket at once: what is then reported as unclosed is ours."""
    connect = KafkaNetSocket.sock_connect

    async def connect_or_close(self: Any, net: Any, sock: Any, *to: Any, **until: Any) -> Any:
        try:
            return await connect(self, net, sock, *to, **until)
        except BaseException:  # GeneratorExit too: so kafka-python cancels a task
            sock.close()
            raise

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(KafkaNetSocket, "sock_connect", connect_or_close)
        yield
