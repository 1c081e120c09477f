"""The sink contract, and the look-up of sinks by name.

Built-in and third-party sinks are found the same way: by an entry point in the group
``tailer.sinks`` whose name is the sink's ``type`` in the configuration.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from tailer.changes import ChangeBatch, Offset
from tailer.errors import ConfigError

__all__ = ["GROUP", "Sink", "SinkFactory", "load_sink", "take_options"]

GROUP = "tailer.sinks"


class Sink(typing.Protocol):
    """Where change batches go. One feed uses one sink; calls never overlap."""

    async def open(self, feed: str) -> Offset | None:
        """Get ready to write for the feed of that name.

        A sink that stores progress together with the data returns the offset to resume from;
        any other returns None, and the feed's offset store decides.
        """

    async def write(self, batch: ChangeBatch) -> None:
        """Write a batch; return only when it is durable.

        Called with empty batches too, which carry nothing but an offset. Raises
        :class:`TransientError` for what may heal, :class:`SinkRejected` for what will not; in
        either case the batch comes again, or nothing does.
        """

    async def aclose(self) -> None:
        """Release everything; what was written stays."""


class SinkFactory(typing.Protocol):
    """What an entry point of the group names: usually the sink's class."""

    @classmethod
    def from_options(cls, options: Mapping[str, Any], folder: Path) -> Sink:
        """The sink of one configuration table, less its ``type``.

        ``folder`` is what relative paths are relative to. Raises :class:`ConfigError` naming the
        key that is missing, unknown or of the wrong kind.
        """


def load_sink(kind: str) -> SinkFactory:
    """The sink of that type. Raises :class:`ConfigError`, listing what there is."""
    known = {point.name: point for point in entry_points(group=GROUP)}
    if kind not in known:
        installed = ", ".join(sorted(known)) or "none"
        raise ConfigError(f"there is no sink of type {kind!r}; installed are: {installed}")
    try:
        return known[kind].load()  # type: ignore[no-any-return]  # a promise of the group
    except ImportError as e:
        raise ConfigError(
            f"the sink {kind!r} can't be loaded ({e}); is its extra installed?"
        ) from e


def take_options(
    kind: str,
    options: Mapping[str, Any],
    allowed: Mapping[str, tuple[type, Any]],
    what: str = "sink",
) -> dict[str, Any]:
    """A sink's options, checked: ``allowed`` maps each key to its type and default.

    A default of ``...`` makes the key required; ``what`` is what messages call it. Raises
    :class:`ConfigError` naming the key and what is allowed.
    """
    for key in options:
        if key not in allowed:
            raise ConfigError(
                f"{what} {kind!r} has no option {key!r}; allowed are: {', '.join(sorted(allowed))}"
            )
    taken = {}
    for key, (expected, default) in allowed.items():
        value = options.get(key, default)
        if value is ...:
            raise ConfigError(f"{what} {kind!r} needs the option {key!r}")
        right = isinstance(value, expected) and (expected is bool or not isinstance(value, bool))
        if key in options and not right:
            raise ConfigError(
                f"option {key!r} of {what} {kind!r} is {value!r}, not a {expected.__name__}"
            )
        taken[key] = value
    return taken
