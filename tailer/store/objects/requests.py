"""The requests of a table, an offset or a target to one cloud's storage, by obstore.

Each is bounded, counted and, if it fails, raised as this project's error. Two refusals are answered
here, once each: credentials that are no longer good are asked for anew, and a bucket of another
region is asked there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from msgspec import structs

from tailer.errors import TailerError, TransientError
from tailer.store.objects.asking import asking
from tailer.store.objects.errors import (
    FAILURES,
    is_refusal,
    is_without_credentials,
    status_of,
    translate_error,
)
from tailer.store.objects.options import CloudOptions, Credentials
from tailer.store.objects.place import Place
from tailer.store.traffic import Traffic

T = TypeVar("T")

#: Concurrent requests of one table.
_REQUESTS_MAX = 8
#: For an answer and its repetitions, or for a thousand objects of a listing: a server may say for
#: ever that there is another page.
_REQUEST_S = 300.0
#: For all requests by the same options on one event loop.
_GATES: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[CloudOptions, asyncio.Semaphore]] = (
    WeakKeyDictionary()
)


@dataclass(frozen=True, slots=True)
class Client:
    """How the addresses of one cloud are read, and its containers reached."""

    options: CloudOptions
    parse: Callable[[str], Place | None]
    credentials: Credentials | None = None

    def open_container(self, place: Place) -> Any:
        """Return obstore's container of a place."""
        return self.options.open_container(place, self.credentials)


class Requests:
    """The requests for what lies at an address or beside it."""

    def __init__(self, address: str, client: Client, traffic: Traffic | None = None) -> None:
        place = client.parse(address)
        assert place is not None
        self.address, self.place, self.client = address.rstrip("/"), place, client
        self.traffic = traffic or Traffic()
        self._gate = asyncio.Semaphore(_REQUESTS_MAX)
        self._containers = {self._container_key(place): client.open_container(place)}

    async def send(
        self,
        operation: str,
        location: str,
        place: Place,
        request: Callable[[Any], Awaitable[T]],
        *,
        room_bytes: float = 0,
        answers: tuple[type[Exception], ...] = (),
    ) -> T:
        """Return what ``request`` does with the container of a place.

        ``location`` is for messages. The process may grow by ``room_bytes`` more. ``answers`` are
        obstore's errors that the caller takes as answers.
        """
        what = f"{self.address}: {operation}" + f" of {location}" * bool(location)
        renewed, moved = not self._can_renew(), False
        async with self._gate, _find_shared_gate(self.client.options):
            while True:
                client = self.client
                try:
                    async with asyncio.timeout(_REQUEST_S), asking(what, room_bytes):
                        return await request(self.find_container(place))
                except TimeoutError:
                    self.traffic.request(operation, "failed", 0)
                    raise TransientError(f"{what} took longer than {_REQUEST_S:g} s") from None
                except FAILURES as e:
                    self.traffic.request(operation, status_of(e) or "failed", 0)
                    if isinstance(e, answers):
                        raise
                    if not moved and await client.options.has_moved(place, e):
                        moved = True
                        self._containers.clear()
                    elif not renewed and is_refusal(e):
                        renewed = True
                        self._renew_credentials(client)
                    else:
                        error = self._find_refusal(e)
                        # Without its cause, whose text may have a signed URL in it.
                        raise error or translate_error(
                            e, operation, self.address, location
                        ) from None
                    self.traffic.retry(operation)
                except (ValueError, OverflowError) as e:  # a time that Python does not know
                    self.traffic.request(operation, "failed", 0)
                    raise TransientError(f"{what} got a wrong answer ({e})") from None
                except (TailerError, asyncio.CancelledError):
                    self.traffic.request(operation, "failed", 0)
                    raise

    def find_container(self, place: Place) -> Any:
        """Return the container of a place; without an account, it is of the address's."""
        if place.account is None:
            place = structs.replace(place, account=self.place.account, domain=self.place.domain)
        key = self._container_key(place)
        if key not in self._containers:
            self._containers[key] = self.client.open_container(place)
        return self._containers[key]

    def _container_key(self, place: Place) -> tuple[str, str | None]:
        return place.container, place.account

    def _can_renew(self) -> bool:
        return self.client.credentials is not None and self.client.credentials.renewable

    def _renew_credentials(self, refused: Client) -> None:
        """Go on with other credentials than a client's, unless another request has seen to it."""
        if self.client is refused and refused.credentials is not None:
            self.client = replace(refused, credentials=refused.credentials.renew())
            self._containers.clear()

    def _find_refusal(self, error: Exception) -> Exception | None:
        """Return why there were no credentials for a request that failed; None if there were."""
        credentials = self.client.credentials
        return credentials.refusal if credentials and is_without_credentials(error) else None


def _find_shared_gate(options: CloudOptions) -> asyncio.Semaphore:
    gates = _GATES.setdefault(asyncio.get_running_loop(), {})
    if options not in gates:
        gates[options] = asyncio.Semaphore(options.requests_max)
    return gates[options]
