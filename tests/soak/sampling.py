"""What a daemon takes at one moment, seen from outside: by ``/proc``, its metrics and its API."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil

Sample = dict[str, float]


class Sampler:
    """Takes samples of a daemon that has its state and its output in a folder."""

    def __init__(self, pid: int, folder: Path, port: int, token: str) -> None:
        self.process = psutil.Process(pid)
        self.folder = folder
        self.url = f"http://127.0.0.1:{port}"
        self.token = token
        self.began = time.monotonic()
        self._at, self._cpu_s = self.began, self._processor_s()

    def ask(self, path: str, data: bytes | None = None) -> bytes:
        """What the daemon answers to a GET, or to a POST of ``data``."""
        request = urllib.request.Request(self.url + path, data)  # noqa: S310
        request.add_header("Authorization", f"Bearer {self.token}")
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            body: bytes = answer.read()
            return body

    def feeds(self) -> list[dict[str, Any]]:
        """The status of every feed."""
        found: list[dict[str, Any]] = json.loads(self.ask("/api/v1/feeds"))["feeds"]
        return found

    def take(self) -> Sample:
        """All figures of this moment; the processor's share is since the last sample."""
        feeds = self.feeds()
        now, cpu_s = time.monotonic(), self._processor_s()
        share = (cpu_s - self._cpu_s) / max(now - self._at, 0.001)
        self._at, self._cpu_s = now, cpu_s
        lags = [feed["lag_seconds"] or 0.0 for feed in feeds]
        out, state = files_of(self.folder / "out"), files_of(self.folder / "state")
        manifests = [path for path in out if "_delta_tailer" in path]
        logs = [path for path in out if "_delta_log" in path]
        wals = [size for path, size in out.items() if path.endswith((".wal", "-wal"))]
        return {
            "hours": (now - self.began) / 3600,
            **self._memory(),
            "descriptors": self.process.num_fds(),
            "threads": self.process.num_threads(),
            "state_files": len(state),
            "state_kib": sum(state.values()) / 2**10,
            "sink_files": len(out) - len(manifests) - len(logs),
            "sink_mib": (sum(out.values()) - sum(wals)) / 2**20,
            "wal_mib": sum(wals) / 2**20,
            "wal_mib_max": max(wals, default=0) / 2**20,
            "manifest_files": len(manifests),
            "target_log_files": len(logs),
            "series": len(re.findall(rb"^[a-z]", self.ask("/metrics"), re.MULTILINE)),
            "cpu_share": share,
            "lag_s": median(lags),
            "lag_s_max": max(lags),
            "feeds": len(feeds),
            "not_following": sum(feed["state"] != "following" for feed in feeds),
            "failed": sum(feed["state"] == "failed" for feed in feeds),
        }

    def _memory(self) -> Sample:
        text = Path(f"/proc/{self.process.pid}/smaps_rollup").read_text()
        kib = {name: int(n) for name, n in re.findall(r"^(\w+): +(\d+) kB$", text, re.MULTILINE)}
        parts = {"rss_mib": "Rss", "pss_mib": "Pss", "anonymous_mib": "Anonymous"}
        return {name: kib[part] / 2**10 for name, part in parts.items()}

    def _processor_s(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)


def files_of(folder: Path) -> dict[str, int]:
    """The files below a folder and their sizes, as far as they still are there."""
    sizes = dict[str, int]()
    for name, _, files in os.walk(folder):
        for file in files:
            path = Path(name, file)
            with suppress(FileNotFoundError):
                sizes[str(path)] = path.stat().st_size
    return sizes
