"""Runs the benchmarks one after the other: `make bench`, or some of them, ARGS="start read". What
they need is fetched and built before; those that lack it are named at the end.

The figures go into docs/performance.json, and from there into docs/performance.md. `make
bench-quick` runs those that need no Java on tiny data, without bounds, so that none rots.
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial

from tests.benchmarks.report import write_report
from tests.prepare import prepare
from tests.support.source import ROOT

#: All that measure against a peer or a bound. Each is a module of its own and has its own options.
NAMES = (
    "start",
    "log",
    "runs",
    "read",
    "derive",
    "shape",
    "verify",
    "growth",
    "encode",
    "daemon",
    "s3",
    "remote",
    "sinks",
    "pubsub",
    "kafka",
    "spark",
    "cluster",
    "share",
)
#: What they need that pip does not bring, by its name in tests/prepare.py; all need the crate.
COMPONENTS = {
    "s3": ("s3",),
    "remote": ("s3",),
    "pubsub": ("pubsub",),
    "kafka": ("kafka",),
    "spark": ("delta",),
    "spark_frames": ("delta",),
    "cluster": ("delta",),
}
#: Those that start a JVM.
JAVA = ("kafka", "spark", "cluster")


def main() -> None:
    """Run those that are named, or all; the status tells whether each stayed in its bounds."""
    options = [argument for argument in sys.argv[1:] if argument == "--quick"]
    wanted = [argument for argument in sys.argv[1:] if argument not in options]
    wanted = wanted or [name for name in NAMES if not options or name not in JAVA]
    needed = ["native", *(component for name in wanted for component in COMPONENTS.get(name, ()))]
    missing = prepare(dict.fromkeys(needed), partial(print, flush=True))
    failed = [name for name in wanted if not missing.keys().isdisjoint(COMPONENTS.get(name, ()))]
    for name in wanted:
        if name in failed:
            continue
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}", *options]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    if not options:
        write_report()
    if failed:
        sys.exit(f"not within bounds, or not prepared: {', '.join(failed)}")


if __name__ == "__main__":
    main()
