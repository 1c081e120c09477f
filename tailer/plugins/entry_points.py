"""What other packages add, found by the group and the name of its entry point."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tailer.errors import ConfigError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


@cache
def installed_points(group: str) -> Mapping[str, EntryPoint]:
    """Return the entry points of a group, by name. The look-up takes 10 ms, because it reads all
    that is installed, and a configuration may have hundreds of sinks."""
    from importlib.metadata import entry_points  # on demand: it takes 15 ms to load

    return {point.name: point for point in entry_points(group=group)}


def load_point(point: EntryPoint, what: str) -> Any:
    """Return the object that an entry point names; ``what`` is what messages call it.

    Raises :class:`ConfigError` if something that it needs is not installed, and if its class does
    not hold its contract (:class:`tailer.plugins.contract.Contract`).
    """
    try:
        return point.load()
    except (ImportError, AttributeError) as e:
        raise ConfigError(f"{what} can't be loaded ({e}){_extra(point)}") from e
    except TypeError as e:
        raise ConfigError(f"{what} can't be loaded: {e}") from e


def _extra(point: EntryPoint) -> str:
    """Return how to install what is missing, if the package has an extra of the point's name."""
    extras = point.dist.metadata.get_all("Provides-Extra") if point.dist else None
    if point.dist is None or point.name not in (extras or ()):
        return ""
    return f": pip install '{point.dist.name}[{point.name}]'"
