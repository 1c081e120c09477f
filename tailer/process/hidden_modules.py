"""Modules that a library loads where they are installed, and that no command needs of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["without_module"]


class _Hiding:
    """Finds a module missing, and says nothing of others."""

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, name: str, *_: object) -> None:
        """See ``importlib.abc.MetaPathFinder``."""
        if name == self._name:
            raise ModuleNotFoundError(f"no command needs {name}", name=name)


@contextmanager
def without_module(name: str) -> Iterator[None]:
    """Let whoever imports a module find it missing meanwhile, if it is not loaded yet."""
    hiding = _Hiding(name)
    sys.meta_path.insert(0, hiding)
    try:
        yield
    finally:
        sys.meta_path.remove(hiding)
