"""Watch one daemon with many feeds: ``python -m tests.soak --hours 4 --feeds 200``.

Real writers commit to small tables: rows, columns, rewrites, checkpoints, log cleanup, VACUUM. The
feeds have every sink that needs no account; targets fail and come back, files are rotated, feeds
come and go by reloads, others are paused, the console is open. Every twenty seconds a line with
what the daemon takes is added to ``samples.jsonl``. At the end each copy is compared with its
table, ``verdict.txt`` says for each measure whether it was flat, and ``soak.svg`` shows them.
``--report FOLDER`` makes both of what a run has written so far.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.kafka.broker import Broker
from tests.prepare import prepare
from tests.soak.disturbing import Operator, run_hook
from tests.soak.feeds import (
    Surroundings,
    TableWriters,
    configuration,
    copies_differ,
    sinks_of,
)
from tests.soak.sampling import Sampler
from tests.soak.verdict import judge, picture
from tests.support.components import free_port
from tests.support.outcomes import commit
from tests.support.waiting import eventually

#: Topics are as full as these say, and no fuller.
_BROKER = {
    "log.retention.ms": "600000",
    "log.retention.check.interval.ms": "30000",
    "log.segment.bytes": "1048576",
    "offsets.topic.num.partitions": "4",
}
_PATIENCE_S = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Watch a daemon; return 1 if a measure grew, or a copy is not its table."""
    parser = argparse.ArgumentParser(prog="tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--feeds", type=int, default=200)
    parser.add_argument("--rate", type=float, default=2.0, help="commits a second, of all tables")
    parser.add_argument("--pace", type=float, default=1.0, help="0.5: twice as many disturbances")
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two samples")
    parser.add_argument("--seed", type=int, default=random.randrange(10**9))
    parser.add_argument("--folder", type=Path, help="by default a new temporary one")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="judge a run so far")
    asked = parser.parse_args(arguments)
    if asked.report:
        return report(asked.report)
    folder = asked.folder or Path(tempfile.mkdtemp(prefix="soak-"))
    folder.mkdir(parents=True, exist_ok=True)
    kafka = not prepare(["kafka"], print)
    print(f"seed {asked.seed}, in {folder}, Kafka: {kafka}", flush=True)
    wrong = soak(
        folder, asked.feeds, asked.hours * 3600, rate=asked.rate, every_s=asked.every,
        seed=asked.seed, kafka=kafka, pace=asked.pace,
    )  # fmt: skip
    for line in wrong:
        print(f"WRONG: {line}", flush=True)
    return max(report(folder), int(bool(wrong)))


def soak(
    folder: Path, feeds: int, seconds: float, *,
    rate: float, every_s: float, seed: int, kafka: bool, pace: float = 1.0,
) -> list[str]:  # fmt: skip
    """Watch a daemon for so long; return what was wrong at the end. ``pace`` shortens the times
    between disturbances."""
    (folder / "begun.json").write_text(json.dumps({"commit": commit(), "seed": seed, "pace": pace}))
    chance = random.Random(seed)
    sinks = sinks_of(feeds, kafka=kafka)
    for kind in {"jsonl", "guests", *sinks}:
        (folder / "out" / kind).mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        broker = stack.enter_context(Broker(settings=_BROKER)) if kafka else None
        hook = stack.enter_context(run_hook())
        bootstrap = broker.bootstrap if broker else None
        around = Surroundings(folder, free_port(), secrets.token_hex(8), hook.url, bootstrap)
        writers = TableWriters(folder / "tables", feeds, seed, rate)
        (folder / "tailer.toml").write_text(configuration(around, sinks))
        log = stack.enter_context((folder / "daemon.log").open("ab"))
        command = [sys.executable, "-m", "tailer", "run", "tailer.toml"]
        daemon = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=_environment())
        stack.callback(daemon.wait)
        stack.callback(daemon.kill)
        sampler = Sampler(daemon.pid, folder, around.port, around.token)
        eventually(lambda: _answers(sampler), _PATIENCE_S, "the daemon does not answer")
        operator = Operator(around, sinks, hook, broker, sampler, chance, pace)
        writers.start()
        until, due = time.monotonic() + seconds, time.monotonic()
        with (folder / "samples.jsonl").open("a") as samples:
            while time.monotonic() < until:
                assert daemon.poll() is None, f"the daemon ended with {daemon.returncode}"
                assert writers.error is None, writers.error
                operator.work()
                if time.monotonic() >= due:
                    due = time.monotonic() + every_s
                    facts = sampler.take() | {"commits": writers.commits}
                    samples.write(json.dumps(facts) + "\n")
                    samples.flush()
                time.sleep(min(0.5, every_s / 4))
        operator.end()
        writers.finish()
        operator.wait_for_the_end(_PATIENCE_S)
        daemon.terminate()
        status = daemon.wait(_PATIENCE_S)
        works = {**operator.done, **{f"hook said {n}": m for n, m in hook.answers.items()}}
        (folder / "done.json").write_text(json.dumps(works | {"commits": writers.commits}))
        wrong = [f"the daemon ended with {status}"] if status else []
        return [*wrong, *copies_differ(folder, sinks, writers)]


def _environment() -> dict[str, str]:
    """Ours, with byte code kept as an installed program has it."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def _answers(sampler: Sampler) -> bool:
    try:
        return bool(sampler.feeds())
    except OSError:
        return False


def report(folder: Path) -> int:
    """Judge the samples of a folder; return 1 if a measure grew."""
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    judged = judge(samples)
    last = samples[-1]
    title = f"{last['feeds']:.0f} feeds, {last['hours']:.1f} hours, {last['commits']} commits"
    text = "\n".join([title, *map(str, judged)])
    print(text, flush=True)
    (folder / "verdict.txt").write_text(text + "\n")
    (folder / "soak.svg").write_text(picture(samples, title))
    return int(not all(one.flat for one in judged))


if __name__ == "__main__":
    sys.exit(main())
