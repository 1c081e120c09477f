"""What a benchmark found: its options, its figures beside their bars, and where they are kept.

Ratios are of wall time. Where other programs had the machine meanwhile, the ratio of processor time
counts instead.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.bars import BARS
from tests.benchmarks.measure import ROOT, Cost

RESULTS = ROOT / "docs/performance.json"
#: Cores that other programs used while a figure was taken, above which its wall time is not meant.
BUSY_MIN = 0.15


def options(doc: str | None, rounds: int = 5) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--quick", action="store_true", help="tiny data, once, without bounds")
    return parser


def machine() -> str:
    """Say what the figures depend on besides the code."""
    versions = ", ".join(f"{name} {version(name)}" for name in ("pyarrow", "deltalake"))
    gib = psutil.virtual_memory().total / 2**30
    kernel = platform.release().partition("-")[0]
    return (
        f"{os.cpu_count()} cores ({_processor()}), {gib:.0f} GiB, Linux {kernel}, "
        f"Python {platform.python_version()}, {versions}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def read_results() -> dict[str, Any]:
    """Read all figures so far, by the name of their bar."""
    found: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return found


@dataclass
class Results:
    """The figures of one run. A quick one has no bounds and keeps nothing."""

    quick: bool
    complaints: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def ratio(self, name: str, ours: Cost, peer: Cost, *, by_wall: bool = False) -> None:
        """Note our time against a peer's; ``by_wall`` even where other programs ran: part of our
        own processor time is not seen."""
        busy = max(ours.others, peer.others)
        wall, processor = ours.wall_s / peer.wall_s, ours.cpu_s / peer.cpu_s
        costs = {"ours": asdict(ours), "peer": asdict(peer)}
        if by_wall:
            figure = {"wall": wall, "processor": processor, "others": busy}
            self.value(name, wall, **figure, **costs)
        else:
            self.quiet(name, wall=wall, processor=processor, others=busy, **costs)

    def quiet(
        self, name: str, *, wall: float, processor: float, others: float, **more: Any
    ) -> None:
        """Note a figure of wall time, or where other programs ran beside it, of processor time."""
        figure = {"wall": wall, "processor": processor, "others": others}
        self.value(name, processor if others > BUSY_MIN else wall, **figure, **more)

    def value(self, name: str, value: float, **more: Any) -> None:
        """Note a figure that is no ratio of times, and print it beside its bar."""
        bar = BARS[name]
        print(f"{name}: {value:.2f} {bar.unit or 'of the time'} (bound {bar.bound:g})", flush=True)
        if value > bar.bound:
            self.complain(f"{name} is {value:.2f}, not {bar.bound:g}")
        self.figures[name] = {
            "value": value,
            **more,
            "at": f"{dt.datetime.now(dt.UTC):%Y-%m-%d}",
            "machine": machine(),
        }

    def complain(self, sentence: str) -> None:
        """Note a bound that is not kept."""
        self.complaints.append(sentence)

    def end(self) -> None:
        """Keep the figures, and end the process: with 1 where a bound is not kept."""
        if self.quick:
            sys.exit(0)
        kept = read_results() | {name: _short(figure) for name, figure in self.figures.items()}
        RESULTS.write_text(json.dumps(dict(sorted(kept.items())), indent=1) + "\n")
        for complaint in self.complaints:
            print(f"beyond its bound: {complaint}")
        sys.exit(1 if self.complaints else 0)


def _short(figure: Any) -> Any:
    """Round all numbers to four digits."""
    if isinstance(figure, dict):
        return {key: _short(value) for key, value in figure.items()}
    if isinstance(figure, list):
        return [_short(value) for value in figure]
    return float(f"{figure:.4g}") if isinstance(figure, float) else figure
