"""The tests with a sample of their cases, in parts side by side: `make test`. `slow` is the rest:
the slow tests, and all cases of the others.

    python -m tests [quick | slow | all]

First, what they need is fetched and built: see ``prepare.py``. Each part is a pytest with servers
of its own. They are more than a small machine's two cores, because most tests wait for a server or
a program. What they print comes as they run, line by line, each with its part's name: also that
a test failed, at once, and the tests of what was changed come first (``support/order.py``).
Tracebacks and what else a part has to say at its end come in one piece. The last lines name what
was skipped, a line a reason, and what failed, and are the parts' own last ones. Where a part fails,
so does the whole, by its status. Options for all are in ``PYTEST_ADDOPTS``; one part alone is
``pytest -m spark``, say.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from dataclasses import dataclass, field

from tests.support.extent import WHOLE_RUN
from tests.support.source import ROOT

# Every test is in one of them, and in one of the choices of a run.
CHOICES = {"quick": "not slow", "slow": "(slow or sampled)", "all": ""}
PARTS = {
    "tests with Spark": "spark",
    "tests with Kafka": "java and not spark",
    "tests of sinks": "sinks and not java",
    "tests of programs": "programs and not sinks and not java",
    "tests of modules": "not programs and not sinks and not java",
}
# These have more files than the others, and are halved by them.
SHARES = {"tests with Spark": 2, "tests of sinks": 2, "tests of programs": 2, "tests of modules": 2}
COLORS = re.compile(r"\x1b\[[0-9;]*m")
# What failed and why, of all that pytest has to say about it.
FAILURE = re.compile(r"(FAILED|ERROR|E) ")
# How often which reason left tests out.
SKIPPED = re.compile(r"SKIPPED \[(\d+)\] \S+: (.+)")
FAILURES_SHOWN = 20
FAILURE_CHARACTERS = 300
# A process that a part has left behind may hold its output open.
LAST_WORDS_S = 5.0


@dataclass(slots=True)
class Part:
    """A part that runs, and what of its output is not shown yet."""

    name: str
    process: subprocess.Popen[str]
    lines: int = 0
    #: What pytest says after the last test: shown as it ends.
    ending: list[str] = field(default_factory=list)
    last: str = ""

    def show(self, shown: threading.Lock) -> None:
        """Show each line as it comes; until the output ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            plain = COLORS.sub("", line)
            self.last = plain.strip("=\n ") or self.last
            # The first section, "test session starts", is the beginning.
            if self.ending or (plain.startswith("=====") and self.lines):
                self.ending.append(line)
                continue
            self.lines += 1
            with shown:
                print(f"{self.name}: {line}", end="", flush=True)

    def failures(self) -> list[str]:
        """What failed, shortly: the output before the end may be cut where it is read."""
        found = [line[:FAILURE_CHARACTERS] for line in self.said() if FAILURE.match(line)]
        return found[-FAILURES_SHOWN:]

    def skipped(self) -> Counter[str]:
        """How many tests were skipped, by the reason."""
        matches = filter(None, map(SKIPPED.match, self.said()))
        return sum((Counter({m[2]: int(m[1])}) for m in matches), Counter())

    def said(self) -> list[str]:
        """The lines of its end, without colours."""
        return [COLORS.sub("", line).rstrip() for line in self.ending]

    def status(self) -> str:
        """How it ended, as its last line and its status say."""
        code = self.process.returncode
        return f"{f'failed with status {code}' if code else 'passed'}: {self.last}"


def main() -> None:
    """Prepare, then run all parts; the status is that of the first one that failed, or 0."""
    from tests.prepare import prepare_all

    parser = argparse.ArgumentParser(prog="python -m tests")
    parser.add_argument("tests", nargs="?", choices=CHOICES, default="quick")
    chosen = parser.parse_args().tests
    if chosen != "quick":
        os.environ[WHOLE_RUN] = "true"
    os.environ["TAILER_TESTS_WITHOUT"] = json.dumps(prepare_all(slow=chosen != "quick"))
    sys.exit(run_parts(CHOICES[chosen]))


def run_parts(chosen: str = "") -> int:
    """Run all parts, of each the tests of a marker expression; returns the status."""
    parts: list[Part] = []
    _leave_ending_to(parts)
    more = f" and {chosen}" if chosen else ""
    for name, expression in PARTS.items():
        shares = SHARES.get(name, 1)
        for share in range(1, shares + 1):
            title = name if shares == 1 else f"{name}, {share}"
            parts.append(Part(title, _start(f"{expression}{more}", f"{share}/{shares}")))
    shown = threading.Lock()
    watchers = [threading.Thread(target=_watch, args=(part, shown)) for part in parts]
    for watcher in watchers:
        watcher.start()
    for watcher in watchers:
        watcher.join()
    skipped = sum((part.skipped() for part in parts), Counter[str]())
    for reason, tests in skipped.most_common():
        print(f"skipped, {tests} test{'s'[: tests > 1]}: {reason}")
    for part in parts:
        print(*part.failures(), f"{part.name}: {part.status()}", sep="\n")
    codes = (part.process.returncode for part in parts)
    return next((abs(code) for code in codes if code), 0)


def _watch(part: Part, shown: threading.Lock) -> None:
    reader = threading.Thread(target=part.show, args=(shown,), daemon=True)
    reader.start()
    part.process.wait()
    reader.join(LAST_WORDS_S)
    if part.ending:
        with shown:
            # What was skipped comes last, a line for each reason and not for each test.
            ending = [line for line in part.ending if not SKIPPED.match(COLORS.sub("", line))]
            print(f"\n{part.name}:\n{''.join(ending)}", flush=True)


def _start(expression: str, share: str) -> subprocess.Popen[str]:
    # Each of hundreds of programs would be compiled again.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    return subprocess.Popen(
        _pytest(expression, share),
        cwd=ROOT, env=environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _pytest(expression: str, share: str) -> list[str]:
    color = "yes" if sys.stdout.isatty() else "auto"
    options = (f"--color={color}", "-p", "tests.support.failures", f"--share={share}")
    return [sys.executable, "-m", "pytest", *options, "-m", expression]


def _leave_ending_to(parts: list[Part]) -> None:
    """A part that is interrupted ends its components and says how far it came. Ctrl-C reaches the
    parts by itself; to a job that is ended its signal is passed on."""

    def interrupt(*_: object) -> None:
        for part in parts:
            part.process.send_signal(signal.SIGINT)

    # Functions, for what is ignored here would be ignored in the parts too.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, interrupt)


if __name__ == "__main__":
    main()
