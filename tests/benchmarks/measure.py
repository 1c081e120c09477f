"""What one run of a program costs: time, processor time and memory of its whole process tree."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import psutil

from tests.benchmarks.tables import bench_folder

ROOT = Path(__file__).resolve().parents[2]
POLL_S = 0.02
# Looking for new processes reads all of /proc, which would itself disturb what is measured.
POLLS_PER_SEARCH = 10


@dataclass(frozen=True, slots=True)
class Cost:
    """Wall and processor seconds (user and system), and the peak of the resident MiB.

    ``others``: cores that programs which are not the benchmark's used meanwhile.
    """

    wall_s: float
    cpu_s: float
    peak_mib: float
    others: float = 0.0


class Peak(threading.Thread):
    """Watches a process and its descendants, and keeps the highest sum of their resident bytes.

    Pages that two of the processes share count twice, as they do in `ps`.
    """

    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.bytes = 0
        self._root = psutil.Process(pid)
        self._end = threading.Event()

    def run(self) -> None:
        polls = 0
        tree = [self._root]
        while not self._end.wait(POLL_S):
            if polls % POLLS_PER_SEARCH == 0:
                tree = self._search()
            polls += 1
            self.bytes = max(self.bytes, sum(map(_resident, tree)))

    def stop(self) -> None:
        """End the watch; `bytes` is final."""
        self._end.set()
        self.join()

    def _search(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return [self._root]


def _resident(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def python(module: str, *arguments: str | int | Path) -> list[str]:
    """Return the command line of a module."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def environment() -> dict[str, str]:
    """Ours, but with modules compiled once, as an installed program has them.

    The byte code is kept in the cache folder, whatever the shell says of writing it.
    """
    own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    return {**own, "PYTHONPYCACHEPREFIX": str(bench_folder() / "bytecode")}


def measure(command: Sequence[str | Path]) -> Cost:
    """Run `command` in the project's folder to its end; a failure shows its stderr and exits.

    The processor time is the kernel's account of the child and of all descendants it waited for.
    """
    # A file and no pipe: nobody need read along while the program is timed.
    with tempfile.TemporaryFile() as output:
        started, busy = time.perf_counter(), busy_s() - own_s()
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, env=environment()
        )
        peak = Peak(child.pid)
        peak.start()
        _, status, usage = os.wait4(child.pid, 0)
        wall_s = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        peak.stop()
        if child.returncode != 0:
            output.seek(0)
            sys.stderr.write(output.read().decode(errors="replace"))
            sys.exit(f"{' '.join(map(str, command))}: exit status {child.returncode}")
    # A peak between two polls shows in the kernel's own figure, which is of the largest process;
    # it begins with what this process had when the child was forked.
    own_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mib = max(peak.bytes / 2**20, usage.ru_maxrss / 2**10 if usage.ru_maxrss > own_kib else 0)
    cpu_s = usage.ru_utime + usage.ru_stime
    others_s = busy_s() - own_s() - busy - cpu_s
    return Cost(wall_s, cpu_s, peak_mib, max(0.0, others_s / wall_s))


def busy_s() -> float:
    """The processor seconds of all programs so far, this one's own and stolen ones among them."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def own_s() -> float:
    """The processor seconds of this process and of the servers that it has started: they belong to
    what is measured."""
    return tree_s(psutil.Process(), ended=False)


def tree_s(root: psutil.Process, *, ended: bool) -> float:
    """The processor seconds of a process and its descendants; with ``ended``, also of those that
    have ended."""
    seconds = 0.0
    for process in (root, *root.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):  # a server's process of one connection
            times = process.cpu_times()
            seconds += times.user + times.system
            seconds += times.children_user + times.children_system if ended else 0.0
    return seconds


def by_turns(
    commands: Mapping[str, Sequence[str | Path]],
    rounds: int,
    *,
    before: Callable[[str], None] = lambda _: None,
    after: Callable[[str], None] = lambda _: None,
) -> dict[str, Cost]:
    """Run all commands by turns, and return the median cost of each.

    A first round warms the caches and does not count, except where there is no other.
    """

    def run(name: str) -> Cost:
        before(name)
        cost = measure(commands[name])
        after(name)
        return cost

    return _medians(commands, run, rounds)


def runs_by_turns(runs: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, Cost]:
    """The same of functions in this process and the servers that it has started."""

    def run(name: str) -> Cost:
        root = psutil.Process()
        cpu, busy, started = tree_s(root, ended=True), busy_s(), time.perf_counter()
        runs[name]()
        wall_s, cpu_s = time.perf_counter() - started, tree_s(root, ended=True) - cpu
        return Cost(wall_s, cpu_s, 0.0, max(0.0, (busy_s() - busy - cpu_s) / wall_s))

    return _medians(runs, run, rounds)


def _medians(names: Iterable[str], run: Callable[[str], Cost], rounds: int) -> dict[str, Cost]:
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for number in range(rounds + 1):
        for name, found in costs.items():
            cost = run(name)
            if number or not rounds:
                found.append(cost)
    return {name: median_cost(found) for name, found in costs.items()}


def print_costs(costs: Mapping[str, Cost], table: str = "") -> None:
    """Print one line for each contender."""
    for name, cost in costs.items():
        print(
            f"{table:10} {name:24} {cost.wall_s:7.2f} s wall {cost.cpu_s:7.2f} s cpu "
            f"{cost.peak_mib:6.0f} MiB, others {cost.others:.1f} cores",
            flush=True,
        )


def median_cost(costs: Sequence[Cost]) -> Cost:
    """The median of each figure by itself."""
    return Cost(
        median(cost.wall_s for cost in costs),
        median(cost.cpu_s for cost in costs),
        median(cost.peak_mib for cost in costs),
        median(cost.others for cost in costs),
    )
