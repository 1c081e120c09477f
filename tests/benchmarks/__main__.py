"""Runs the benchmarks one after the other: `make bench`, or some of them, ARGS="start read"."""

from __future__ import annotations

import subprocess
import sys

from tests.support.source import ROOT

#: All that measure against a peer or a bound. Each is a module of its own and has its own options.
NAMES = (
    "start",
    "log",
    "derive",
    "encode",
    "daemon",
    "s3",
    "kafka",
    "spark",
    "cluster",
    "share",
    "read",
)


def main() -> None:
    """Run those that are named, or all; the status tells whether each stayed in its bounds."""
    wanted = sys.argv[1:] or [
        n for n in NAMES if (ROOT / f"tests/benchmarks/bench_{n}.py").exists()
    ]
    failed = []
    for name in wanted:
        print(f"== {name}", flush=True)
        command = [sys.executable, "-m", f"tests.benchmarks.bench_{name}"]
        if subprocess.run(command, cwd=ROOT, check=False).returncode:
            failed.append(name)
    if failed:
        sys.exit(f"not within bounds: {', '.join(failed)}")


if __name__ == "__main__":
    main()
