"""Credentials that a catalog vends for one table, renewed before they end."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio
from msgspec import Struct

from tailer.errors import TableError
from tailer.secrets import forget_secrets, keep_secrets

#: How long before its end a credential is renewed; one of a shorter life at half of it.
_RENEW_BEFORE_S = 300.0


class VendedCredential(Struct, frozen=True):
    """What a catalog vends: values by the names of its API, such as ``s3.access-key-id``.

    ``prefix`` is the address that it is good for, ``expires_s`` its end in epoch seconds (None:
    never).
    """

    prefix: str
    values: Mapping[str, str]
    expires_s: float | None = None

    def __repr__(self) -> str:
        return f"VendedCredential({self.prefix!r})"


class Vendor:
    """The credential of one table, asked for when it is first needed and again before it ends.

    ``fetch`` asks the catalog for credentials; ``table`` and ``location`` are for messages and for
    the choice among several. ``clock`` gives epoch seconds.
    """

    def __init__(
        self,
        table: str,
        location: str,
        fetch: Callable[[], Awaitable[Sequence[VendedCredential]]],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._table, self._location = table, location
        self._fetch = fetch
        self._clock = clock
        self._lock = anyio.Lock()
        self._current: VendedCredential | None = None
        self._renew_at = float("inf")

    @property
    def expires_s(self) -> float | None:
        """When the credential that was used last ends, in epoch seconds; None: never."""
        return None if self._current is None else self._current.expires_s

    def forget(self) -> None:
        """Ask the catalog again: the storage has refused the credential as expired."""
        self._renew_at = float("-inf")

    async def values(self, *names: str) -> Mapping[str, str]:
        """Return the values of a credential that is good now, these among them.

        Raises :class:`TableError` for a credential that lacks one: it is for another cloud. Raises
        the errors of the catalog.
        """
        current = self._current
        if current is None or self._clock() >= self._renew_at:
            current = await self._renew_credential()
        if not all(current.values.get(name) for name in names):
            others = ", ".join(sorted(current.values)) or "nothing"
            raise TableError(
                f"the catalog vends {others} for it, and {self._location} needs {names[0]}",
                table=self._table,
                hint="ask the catalog's administrator for a storage credential of this cloud",
            )
        return current.values

    async def _renew_credential(self) -> VendedCredential:
        async with self._lock:
            if self._current is None or self._clock() >= self._renew_at:
                chosen = self._choose_credential(await self._fetch())
                if self._current is not None:
                    forget_secrets(self._current.values.values())
                keep_secrets(chosen.values.values())
                now, end = self._clock(), chosen.expires_s
                self._current = chosen
                life_s = float("inf") if end is None else end - now
                self._renew_at = now + max(life_s - _RENEW_BEFORE_S, life_s / 2)
            return self._current

    def _choose_credential(self, vended: Sequence[VendedCredential]) -> VendedCredential:
        """Return the credential of the longest prefix that covers the table's location."""
        covering = [one for one in vended if _covers_location(one.prefix, self._location)]
        if not covering:
            places = ", ".join(one.prefix for one in vended) or "no place at all"
            raise TableError(
                f"the catalog vends a credential for {places}, and the table is at "
                f"{self._location}",
                table=self._table,
                hint="ask the catalog's administrator for one that covers the table's folder",
            )
        return max(covering, key=lambda one: len(one.prefix))


def _covers_location(prefix: str, location: str) -> bool:
    """Return whether a location is in a prefix; an empty one is what older catalogs say."""
    return not prefix or f"{location.rstrip('/')}/".startswith(f"{prefix.rstrip('/')}/")
