"""Runs the benchmarks one after the other: `make bench`, or some of them, ARGS="start read".

`make bench-quick` runs those that can on tiny data, without bounds, so that none rots.
"""

from __future__ import annotations

import subprocess
import sys

from tests.support.source import ROOT

#: All that measure against a peer or a bound. Each is a module of its own and has its own options.
NAMES = (
    "start",
    "log",
    "runs",
    "derive",
    "encode",
    "daemon",
    "s3",
    "remote",
    "kafka",
    "spark",
    "cluster",
    "share",
    "read",
)
#: Those that take `--quick`.
QUICK = ("runs", "remote")


def main() -> None:
    """Run those that are named, or all; the status tells whether each stayed in its bounds."""
    options = [argument for argument in sys.argv[1:] if argument == "--quick"]
    wanted = [argument for argument in sys.argv[1:] if argument not in options] or [
        n
        for n in (QUICK if options else NAMES)
        if (ROOT / f"tests/benchmarks/bench_{n}.py").exists()
    ]
    failed = []
    for name in wanted:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}", *options]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"not within bounds: {', '.join(failed)}")


if __name__ == "__main__":
    main()
