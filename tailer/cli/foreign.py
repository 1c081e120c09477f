"""Another distribution that has our import name, seen before anything is run."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import suppress

from tailer.errors import ConfigError

#: The metadata of an installed distribution ``tailer``.
_FOREIGN = re.compile(r"tailer-[^-]+(-.*)?\.(dist|egg)-info", re.IGNORECASE)


def refuse_foreign_owner() -> None:
    """Refuse another distribution that owns the import name ``tailer``: installed beside ours, the
    two overwrite each other's files."""
    # importlib.metadata would take nearly as long to load as pyarrow.
    if any(map(_FOREIGN.fullmatch, _list_installed())):
        raise ConfigError(
            "the distributions `tailer` and `delta-tailer` are both installed here and overwrite "
            "each other: `pip uninstall tailer delta-tailer`, then install delta-tailer alone"
        )


def _list_installed() -> Iterator[str]:
    """Yield the names of all that lies in the folders that Python imports from."""
    for folder in sys.path:
        with suppress(OSError):  # an archive, or no folder
            yield from os.listdir(folder or ".")  # noqa: PTH208  # no path for each of thousands
