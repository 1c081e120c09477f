"""Clients that a process shares: one for each set of options and event loop, open while in use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakKeyDictionary


class _Client(Protocol):
    """A client that is made from its options."""

    options: Any

    async def aclose(self) -> None:
        """Close its connections."""


Options = TypeVar("Options", bound=Hashable)
Client = TypeVar("Client", bound=_Client)


class SharedClients(Generic[Options, Client]):
    """The clients that ``make`` makes from options, which are equal for equal clients."""

    def __init__(self, make: Callable[[Options], Client]) -> None:
        self._make = make
        self._all: WeakKeyDictionary[
            asyncio.AbstractEventLoop, dict[Options, tuple[Client, int]]
        ] = WeakKeyDictionary()

    def take_client(self, options: Options) -> Client:
        """Return the client of these options, and count one more user."""
        clients = self._all.setdefault(asyncio.get_running_loop(), {})
        client, users = clients.get(options) or (self._make(options), 0)
        clients[options] = client, users + 1
        return client

    async def give_back(self, client: Client) -> None:
        """Count one user less; the last one closes the client."""
        clients = self._all.get(asyncio.get_running_loop(), {})
        known, users = clients.get(client.options, (None, 0))
        if known is client and users > 1:
            clients[client.options] = client, users - 1
        else:
            if known is client:
                del clients[client.options]
            await client.aclose()

    @asynccontextmanager
    async def lend_client(self, options: Options) -> AsyncIterator[Client]:
        """Provide the client of these options for a block."""
        client = self.take_client(options)
        try:
            yield client
        finally:
            await self.give_back(client)
