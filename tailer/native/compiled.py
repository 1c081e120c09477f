"""The compiled modules (``_*.c``), each of which is optional."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

__all__ = ["loaded"]


def loaded(name: str, interface: int) -> Any | None:
    """Return a compiled module; None if there was no compiler, if its version is not ``interface``,
    or if the environment has TAILER_NATIVE=0."""
    if os.environ.get("TAILER_NATIVE") == "0":
        return None
    try:
        module = import_module(f"tailer.native.{name}")
    except ImportError:
        return None
    return module if interface == module.INTERFACE else None
