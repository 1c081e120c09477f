"""`tailer version`: the version, and with --verbose what a report of a problem needs."""

from __future__ import annotations

import argparse
import platform
import re
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires
from importlib.metadata import version as version_of

from tailer import __version__
from tailer.native.compiled import list_absent

_DISTRIBUTION = "delta-tailer"


async def version(arguments: argparse.Namespace) -> int:
    """Print the version; return the exit status."""
    slower = f" (not compiled: {', '.join(list_absent())})" if list_absent() else ""
    print(f"{_DISTRIBUTION} {__version__}{slower}")
    if arguments.verbose:
        print(f"python {platform.python_version()} ({platform.python_implementation()})")
        # On musl, Python's own names say nothing of the C library: what it was built for does.
        built_for = sysconfig.get_config_var("MULTIARCH") or sysconfig.get_platform()
        print(f"system {platform.platform()} {built_for}")
        print(f"decoder {'pyarrow' if '_parquet' in list_absent() else 'compiled'}")
        print(f"installed in {sys.prefix}")
        for name in _list_dependencies():
            try:
                print(f"{name} {version_of(name)}")
            except PackageNotFoundError:
                print(f"{name} -")
    return 0


def _list_dependencies() -> Iterator[str]:
    """Yield the names of the packages that are used, those of extras too, in order; not those that
    only its developers need."""
    own = re.compile(r"""extra == ['"](dev|docs|release|demo)['"]""")
    names = {
        re.split(r"[^\w.-]", wanted, maxsplit=1)[0]
        for wanted in requires(_DISTRIBUTION) or ()
        if not own.search(wanted)
    }
    yield from sorted(names - {_DISTRIBUTION}, key=str.lower)
