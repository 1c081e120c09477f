"""delta-tailer: every row-level change of a Delta Lake table, in order, with an offset."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("delta-tailer")
except PackageNotFoundError:  # run from a source tree that was never installed
    __version__ = "0"

__all__ = ["__version__"]
