"""The compiled modules, each of which is optional: ``_parquet`` (the crate in ``native/``) decodes
Parquet, ``_rowbytes`` (``_rowbytes.c``) encodes rows."""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def load_compiled(name: str, interface: int) -> Any | None:
    """Return a compiled module; None if it was not built, if its version is not ``interface``,
    or if the environment has TAILER_NATIVE=0."""
    if os.environ.get("TAILER_NATIVE") == "0":
        return None
    try:
        module = import_module(f"tailer.native.{name}")
    except ImportError:
        return None
    return module if interface == module.INTERFACE else None


def list_absent() -> list[str]:
    """Return which of the modules were not built, or are left aside."""
    aside = os.environ.get("TAILER_NATIVE") == "0"
    names = ("_parquet", "_rowbytes")
    return [name for name in names if aside or find_spec(f"tailer.native.{name}") is None]
