"""What `tailer read` and `tailer tail` cost before their first event, on a table of few rows.

    python -m tests.benchmarks.bench_start [--rounds 5]

prints the seconds of `history`, and of a read of a version without rows beyond those of importing
pyarrow alone. They hold too where numpy and pandas are installed: `PYTHONPATH=FOLDER` adds those of
a folder. Then the processor seconds, beyond those of importing pyarrow, of both commands up to the
first event; the dearest imports, and which of the clients that neither command needs were loaded
all the same. Ends with 1 where that is any, or the seconds are beyond the bounds.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import psutil

from tests.benchmarks.feed_tables import feed_table
from tests.benchmarks.measure import ROOT, Cost, by_turns, environment, print_costs, python
from tests.benchmarks.results import Results, options

#: Up to the first event.
CPU_S_MAX = 0.4
ROWS_OF_A_FILE = 2_000

# Clients that only some sinks, stores or the cluster's side need.
NEEDLESS = ("aiobotocore", "botocore", "confluent_kafka", "deltalake", "kafka", "py4j", "pyspark")

# Runs the command line as `python -m tailer` does, and leaves the names of its modules in a file.
PROBE = """
import atexit, json, runpy, sys
output = sys.argv.pop(1)
def leave():
    with open(output, "w") as file:
        json.dump(sorted(sys.modules), file)
atexit.register(leave)
runpy.run_module("tailer", run_name="__main__", alter_sys=True)
"""

IMPORT_TIME = re.compile(r"import time: +(\d+) \| +\d+ \| +([\w.]+)")


@dataclass(frozen=True, slots=True)
class Start:
    """Processor seconds of a process at its first line of output, its modules and import times."""

    cpu_s: float
    modules: list[str]
    imports_us: Counter[str]


def start(arguments: Sequence[str], *, timed: bool) -> Start:
    """Run `tailer` up to its first event, let it end (`tail` by Ctrl-C), and see it end with 0.

    With `timed` the interpreter times every import, which itself takes time: such a run's
    `cpu_s` is not the command's own.
    """
    with tempfile.TemporaryDirectory() as folder:
        names = Path(folder, "modules.json")
        errors = Path(folder, "stderr")
        options = ["-X", "importtime"] if timed else []
        command = [sys.executable, *options, "-c", PROBE, str(names), *arguments]
        with (
            errors.open("wb") as stderr,
            subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=stderr, cwd=ROOT, env=environment()
            ) as child,
        ):
            assert child.stdout is not None
            line = child.stdout.readline()
            # The table is larger than the pipe: the child now waits for its reader.
            times = psutil.Process(child.pid).cpu_times()
            if arguments[0] == "tail":
                child.send_signal(signal.SIGINT)
            child.stdout.read()
        said = errors.read_text()
        if not line or child.returncode != 0:
            sys.exit(f"tailer {' '.join(arguments)}: exit status {child.returncode}\n{said}")
        assert "_change_type" in json.loads(line)
        imports_us: Counter[str] = Counter()
        for self_us, name in IMPORT_TIME.findall(said):
            imports_us[name.split(".")[0]] += int(self_us)
        return Start(times.user + times.system, json.loads(names.read_text()), imports_us)


def show(name: str, arguments: Sequence[str], rounds: int, base_s: float) -> list[str]:
    """Measure and print one command; a sentence for each bound that it does not keep."""
    # The first one may still have to compile its modules.
    starts = [start(arguments, timed=False) for _ in range(rounds + 1)][1:]
    cpu_s = median(one.cpu_s for one in starts) - base_s
    modules = starts[0].modules
    print(f"tailer {name}: {cpu_s:.2f} CPU s to the first event, {len(modules)} modules; in ms:")
    # Imports are timed by the clock: the least of some runs is what other programs did not add to.
    imports = [start(arguments, timed=True).imports_us for _ in range(rounds)]
    least = Counter({package: min(one[package] for one in imports) for package in imports[0]})
    dearest = least.most_common(12)
    print("  " + ", ".join(f"{package} {us / 1000:.0f}" for package, us in dearest))
    loaded = sorted({module.split(".")[0] for module in modules} & set(NEEDLESS))
    complaints = [f"{name} loads {package}, which it does not need" for package in loaded]
    if cpu_s > CPU_S_MAX:
        complaints.append(f"{name} takes {cpu_s:.2f} CPU s before its first event")
    return complaints


def main() -> None:
    """Measure both commands, and end with 1 where a bound is not kept."""
    asked = options(__doc__).parse_args()
    results = Results(asked.quick)
    rounds = 1 if asked.quick else asked.rounds
    table = str(feed_table(ROWS_OF_A_FILE))
    commands = {name: python("tailer", name, table) for name in ("history", "snapshot")}
    empty = ["read", table, "--from", "0", "--to", "0", "--output", f"{table}.empty.arrow"]
    commands["empty"] = python("tailer", *empty)
    arrow = {"import pyarrow": [sys.executable, "-c", "import pyarrow"]}
    costs = by_turns(arrow | commands, 0 if asked.quick else rounds)
    print_costs(costs)
    base_s = costs["import pyarrow"].cpu_s
    complaints = [
        *show("read", ["read", table, "--from", "1", "--output", "-"], rounds, base_s),
        *show("tail", ["tail", table, "--from", "1"], rounds, base_s),
    ]
    for complaint in complaints:
        results.complain(complaint)
    nothing = Cost(0.0, 0.0, 0.0)
    for bar, name, base in (
        ("start", "history", nothing),
        ("start-read", "empty", costs["import pyarrow"]),
    ):
        cost = costs[name]
        results.quiet(
            bar,
            wall=cost.wall_s - base.wall_s,
            processor=cost.cpu_s - base.cpu_s,
            others=max(cost.others, base.others),
            ours=asdict(cost),
        )
    results.end()


if __name__ == "__main__":
    main()
