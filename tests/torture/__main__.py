"""Run rounds on real components: ``python -m tests.torture --hours 1``, or one by its seed."""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.prepare import prepare
from tests.torture.faults import FAULTS, fake_clock
from tests.torture.recipe import SINKS, STORES, WRITERS, Recipe
from tests.torture.round import run_round
from tests.torture.servers import Servers
from tests.torture.summary import Summary
from tests.torture.targets import TARGETS

#: What is fetched or built before it is used.
_COMPONENTS = {
    "s3": ("s3",), "az": ("azurite",), "gs": ("gcs",), "kafka": ("kafka", "registry"),
    "server upgraded": ("older-kafka",), "pubsub": ("pubsub",),
    "spark": ("delta",), **dict.fromkeys(("sqs", "sns", "kinesis", "firehose"), ("moto",)),
}  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds; return 1 if one has broken a promise."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    parser = argparse.ArgumentParser(prog="tests.torture", description=__doc__)
    hours = float(os.environ.get("TAILER_TORTURE_HOURS", "1"))
    parser.add_argument("--hours", type=float, default=hours)
    parser.add_argument("--rounds", type=int, help="run this many, however long they take")
    parser.add_argument("--seed", type=int, help="the first seed; by default a random one")
    parser.add_argument("--stores", nargs="+", default=STORES, choices=STORES)
    parser.add_argument("--sinks", nargs="+", default=SINKS, choices=SINKS)
    parser.add_argument("--writers", nargs="+", default=WRITERS, choices=WRITERS)
    parser.add_argument("--faults", nargs="+", default=FAULTS, choices=FAULTS)
    parser.add_argument(
        "--real-catalog", action="store_true", help="on the server of make catalog-server"
    )
    parser.add_argument("--summary", type=Path, help="write what was seen to this file, as JSON")
    options = parser.parse_args(words)
    first = random.randrange(10**9) if options.seed is None else options.seed
    until = time.monotonic() + options.hours * 3600
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="torture-"))
        servers = Servers(stack, folder, real_catalog=options.real_catalog)
        missing = _missing(
            [*options.stores, *options.sinks, *options.writers, *options.faults], servers
        )
        stores = [name for name in options.stores if name not in missing]
        sinks = [name for name in options.sinks if name not in missing]
        writers = [name for name in options.writers if name not in missing]
        print(f"missing: {'; '.join(f'{k}: {why}' for k, why in missing.items()) or 'nothing'}")
        summary = Summary(first, missing, options.summary, words)
        seed = first
        while seed - first < options.rounds if options.rounds else time.monotonic() < until:
            recipe = Recipe.drawn(seed, options.faults, stores, sinks, writers)
            _round(recipe, servers, folder / str(seed), summary, options.faults)
            seed += 1
    if not summary.record["failed"]:
        shutil.rmtree(folder)
    print(f"{summary.record['rounds']} rounds, {summary.record['failed']} failed", flush=True)
    return int(summary.record["failed"] > 0)


def _missing(names: Sequence[str], servers: Servers) -> dict[str, str]:
    """What of these can't be had here, and why."""
    failed = prepare(sorted({part for n in names for part in _COMPONENTS.get(n, ())}), print)
    missing = {
        name: failed[part] for name in names for part in _COMPONENTS.get(name, ()) if part in failed
    }
    if find_spec("obstore") is None:
        missing |= dict.fromkeys({"az", "gs"} & set(names), "obstore is missing")
    for name in set(names) & set(TARGETS) - set(missing):
        if TARGETS[name].server:
            try:
                servers.peer(TARGETS[name].server)
            except pytest.skip.Exception as e:
                missing[name] = str(e)
    if not fake_clock():
        missing["clock"] = "libfaketime is missing"
    return missing


def _round(
    recipe: Recipe, servers: Servers, folder: Path, summary: Summary, faults: Sequence[str]
) -> None:
    folder.mkdir()
    try:
        with servers.place(recipe.store, folder) as place:
            outcome = run_round(recipe, place, folder, servers)
    except Exception as e:  # noqa: BLE001 - the rounds go on
        again = _again(recipe, faults)
        print(f"round {recipe.seed}: {recipe}: FAILED, kept in {folder}", flush=True)
        print(f"  repeat: {again}", flush=True)
        traceback.print_exc()
        failure = {
            "seed": recipe.seed, "recipe": str(recipe), "repeat": again,
            "error": f"{type(e).__name__}: {e}"[:2000],
        }  # fmt: skip
        traits = {**recipe.traits, "fault": recipe.faults}
        summary.add(recipe.seed, traits, {}, failure)
        return
    shutil.rmtree(folder)
    traits = {
        **recipe.traits, "fault": outcome.faults, "operation": outcome.operations,
        "proof": [outcome.proof], "table": [*recipe.traits["table"], *outcome.table],
    }  # fmt: skip
    sums: Mapping[str, int] = {
        "versions": outcome.versions, "rows": outcome.rows, "events": outcome.events,
    }  # fmt: skip
    summary.add(recipe.seed, traits, sums)
    print(
        f"round {recipe.seed}: {recipe}: {outcome.versions} versions, {outcome.rows} rows, "
        f"{outcome.events} events, {outcome.seconds:.0f} s: exact",
        flush=True,
    )


def _again(recipe: Recipe, faults: Sequence[str]) -> str:
    """The command that repeats a round."""
    only = f"--stores {recipe.store} --sinks {recipe.sink}"
    if recipe.store != "catalog":
        only += f" --writers {recipe.writer}"
    if tuple(faults) != FAULTS:
        only += " --faults " + " ".join(f'"{fault}"' for fault in faults)
    return f"python -m tests.torture --rounds 1 --seed {recipe.seed} {only}"


if __name__ == "__main__":
    sys.exit(main())
