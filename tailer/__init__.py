"""delta-tailer: every row-level change of a Delta Lake table, in order, with an offset."""

from __future__ import annotations

__version__: str

__all__ = ["__version__"]


def __getattr__(name: str) -> str:
    """Return the version on first use: most processes never need it, and the look-up takes 10
    ms."""
    if name != "__version__":
        raise AttributeError(name)
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("delta-tailer")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"
