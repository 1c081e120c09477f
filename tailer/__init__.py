"""delta-tailer: every row-level change of a Delta Lake table, in order, with an offset.

The public API is these functions, and these modules; docs/architecture.md lists their stable names.
Each is loaded on first use: ``import tailer`` takes no time, and ``tailer.read(...)`` and
``tailer.deltalog.DeltaLog`` are there. ``__init__.pyi`` has the types.
"""

from __future__ import annotations

from typing import Any

__version__: str

# No imports, not even for types: this is loaded before all others.
__all__ = ["Batch", "Changes", "Cursor", "Rows", "Tail", "history", "read", "snapshot", "tail"]
_OF_API = tuple(__all__)
__all__ += ["changes", "deltalog", "errors", "feed", "settings", "sink", "spark", "testing"]
__all__ += ["__version__"]


def __getattr__(name: str) -> Any:
    """Load a public name, or look the version up (10 ms), on first use."""
    from importlib import import_module

    if name == "__version__":
        return _version()
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _OF_API:
        return getattr(import_module(f"{__name__}.api.functions"), name)
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("delta-tailer")
    except PackageNotFoundError:  # run from a source tree that was never installed
        return "0"
