"""Arrow's functions, ``pyarrow.compute``, loaded with the first that is used: that takes a tenth of
a command's start, and a version without rows needs none."""

from __future__ import annotations

from typing import Any

__all__: list[str] = []  # whatever pyarrow.compute has


def __getattr__(name: str) -> Any:
    """Load a function, which is then an attribute of this module."""
    import pyarrow.compute

    function = globals()[name] = getattr(pyarrow.compute, name)
    return function
