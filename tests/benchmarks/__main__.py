"""All benchmarks, one after the other: `python -m tests.benchmarks [options of bench_read]`."""

from __future__ import annotations

import subprocess
import sys

from tests.benchmarks.measure import ROOT


def main() -> None:
    """Run all and end with 1 where either is beyond a bound; each tells its figures itself."""
    module = [sys.executable, "-m"]
    start = subprocess.run([*module, "tests.benchmarks.bench_start"], cwd=ROOT, check=False)
    logs = subprocess.run([*module, "tests.benchmarks.bench_log"], cwd=ROOT, check=False)
    derive = subprocess.run([*module, "tests.benchmarks.bench_derive"], cwd=ROOT, check=False)
    read = [*module, "tests.benchmarks.bench_read", *sys.argv[1:]]
    rows = subprocess.run(read, cwd=ROOT, check=False)
    sys.exit(1 if any(run.returncode for run in (start, logs, derive, rows)) else 0)


if __name__ == "__main__":
    main()
