"""Whether what a daemon took over some hours is flat, and the picture of it.

The slope is that of Theil and Sen, the median of the slopes between any two samples: a few high
samples do not bend it. It is taken over the last half, when caches have filled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from tests.benchmarks.svg import time_plot
from tests.soak.sampling import Sample

#: A measure may grow in the last half by such a part of its median, or by so much. Not judged is
#: what grows when other processes end: a daemon's share of the libraries' pages (``pss_mib``); and
#: the databases' own logs (``wal_mib``), each of which fills until the database puts it into its
#: file: at 4 MiB for SQLite, at 16 MiB for DuckDB.
BOUNDS = {
    "rss_mib": (0.05, 10.0),
    "anonymous_mib": (0.05, 10.0),
    "descriptors": (0.02, 5.0),
    "threads": (0.02, 3.0),
    "state_files": (0.01, 5.0),
    "state_kib": (0.05, 100.0),
    "sink_files": (0.1, 20.0),
    "sink_mib": (0.1, 10.0),
    "series": (0.01, 20.0),
    "cpu_share": (0.2, 0.02),
    "lag_s": (0.2, 1.0),
}
_SAMPLES_MAX = 300
_TITLES = {
    "rss_mib": "resident memory, MiB",
    "anonymous_mib": "of it anonymous (heaps), MiB",
    "descriptors": "open descriptors",
    "threads": "threads",
    "state_kib": "state on disk, KiB",
    "sink_files": "files of the sinks",
    "series": "series of the metrics",
    "cpu_share": "processor, share of a core",
    "lag_s": "lag, median of the feeds, s",
}


@dataclass(frozen=True)
class Flatness:
    """One measure: its median in the last half, how much it grew in it, and what it may."""

    name: str
    first: float
    median: float
    last: float
    growth: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.growth <= self.allowed

    def __str__(self) -> str:
        end = "flat" if self.flat else "GROWS"
        return (
            f"{self.name:14} {self.first:9.2f} -> {self.last:9.2f}, median {self.median:9.2f}, "
            f"grew {self.growth:+8.2f} of {self.allowed:.2f} allowed: {end}"
        )


def slope(points: Sequence[tuple[float, float]]) -> float:
    """The median of the slopes between any two points, of some hundred at most."""
    chosen = points[:: -(-len(points) // _SAMPLES_MAX)]
    slopes = [
        (y2 - y1) / (x2 - x1)
        for n, (x1, y1) in enumerate(chosen)
        for x2, y2 in chosen[n + 1 :]
        if x2 > x1
    ]
    return median(slopes) if slopes else 0.0


def judge(samples: Sequence[Sample]) -> list[Flatness]:
    """Each measure that has a bound, over the last half of the samples."""
    half = samples[len(samples) // 2 :]
    length = half[-1]["hours"] - half[0]["hours"]
    judged = []
    for name, (part, least) in BOUNDS.items():
        values = [sample[name] for sample in half]
        middle = median(values)
        growth = slope([(sample["hours"], sample[name]) for sample in half]) * length
        tenth = max(1, len(half) // 10)
        ends = median(values[:tenth]), median(values[-tenth:])
        allowed = max(part * middle, least)
        judged.append(Flatness(name, ends[0], middle, ends[1], growth, allowed))
    return judged


def picture(samples: Sequence[Sample], title: str) -> str:
    """The measures over the hours, as SVG."""
    lines = {
        text: [(sample["hours"], sample[name]) for sample in samples]
        for name, text in _TITLES.items()
    }
    return time_plot(title, "hours", lines)
