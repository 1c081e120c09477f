"""The option that names a sink's own columns, the same for every sink that adds some."""

from __future__ import annotations

from tailer.settings import OWN_PREFIX_SETTING
from tailer.sink import OWN_PREFIX

__all__ = ["OWN_PREFIX_SETTING", "add_prefix"]


def add_prefix(name: str, prefix: str) -> str:
    """Return one of our names, which begins with an underscore, with the prefix in its place."""
    return prefix + name.removeprefix(OWN_PREFIX)
