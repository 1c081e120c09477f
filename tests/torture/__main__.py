"""Run rounds on real components: ``python -m tests.torture --hours 1``, or one by its seed."""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.clouds.servers import run_cloud
from tests.prepare import prepare
from tests.s3.fixture import ACCOUNT, run_server
from tests.torture.places import Place, local_place, remote_place
from tests.torture.recipe import STORES, Recipe
from tests.torture.round import run_round

__all__ = ["main"]

_COMPONENTS = {"s3": "s3", "az": "azurite", "gs": "gcs"}


class Servers:
    """The stores' servers, one each, for all rounds."""

    def __init__(self, stack: ExitStack, folder: Path, stores: Sequence[str]) -> None:
        self._buckets: dict[str, Callable[[], Any]] = {}
        if "s3" in stores:
            server = stack.enter_context(run_server(folder / "s3"))
            self._buckets["s3"] = lambda: server.bucket(f"b-{uuid.uuid4()}")
            # The daemon finds the account where AWS's own tools do.
            os.environ |= ACCOUNT
        if "az" in stores:
            self._buckets["az"] = stack.enter_context(run_cloud("azure")).container
        if "gs" in stores:
            self._buckets["gs"] = stack.enter_context(run_cloud("gcs")).container

    @contextmanager
    def place(self, store: str, folder: Path) -> Iterator[Place]:
        """A place for one table."""
        if store == "local":
            yield local_place(folder)
            return
        with remote_place(self._buckets[store]()) as place:
            yield place


def main(arguments: Sequence[str] | None = None) -> int:
    """Run rounds; return 1 if one has broken a promise."""
    parser = argparse.ArgumentParser(prog="tests.torture", description=__doc__)
    hours = float(os.environ.get("TAILER_TORTURE_HOURS", "1"))
    parser.add_argument("--hours", type=float, default=hours)
    parser.add_argument("--rounds", type=int, help="run this many, however long they take")
    parser.add_argument("--seed", type=int, help="the first seed; by default a random one")
    parser.add_argument("--stores", nargs="+", default=STORES, choices=STORES)
    parser.add_argument("--summary", type=Path, help="write what was seen to this file, as JSON")
    options = parser.parse_args(arguments)
    failed = prepare([_COMPONENTS[s] for s in options.stores if s in _COMPONENTS], print)
    without = {*failed, *(() if find_spec("obstore") else ("azurite", "gcs"))}
    stores = [s for s in options.stores if _COMPONENTS.get(s) not in without]
    print(f"stores: {', '.join(stores)}; missing: {', '.join(sorted(without)) or 'none'}")
    first = random.randrange(10**9) if options.seed is None else options.seed
    until = time.monotonic() + options.hours * 3600
    seen: Counter[str] = Counter()
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="torture-"))
        (folder / "s3").mkdir()
        servers = Servers(stack, folder, stores)
        seed = first
        while seed - first < options.rounds if options.rounds else time.monotonic() < until:
            _round(Recipe.drawn(seed, stores), servers, folder / str(seed), seen)
            seed += 1
    if not seen["failed"]:
        shutil.rmtree(folder)
    print(f"{seen['rounds']} rounds, {seen['failed']} failed", flush=True)
    if options.summary:
        options.summary.write_text(
            json.dumps({"first": first, **dict(sorted(seen.items()))}, indent=1)
        )
    return int(seen["failed"] > 0)


def _round(recipe: Recipe, servers: Servers, folder: Path, seen: Counter[str]) -> None:
    folder.mkdir()
    seen.update(["rounds", f"store: {recipe.store}", f"sink: {recipe.sink}"])
    try:
        with servers.place(recipe.store, folder) as place:
            outcome = run_round(recipe, place, folder)
    except Exception:  # noqa: BLE001 - the rounds go on
        seen["failed"] += 1
        print(f"round {recipe.seed}: {recipe}: FAILED, kept in {folder}", flush=True)
        again = f"--rounds 1 --seed {recipe.seed} --stores {recipe.store}"
        print(f"  repeat: python -m tests.torture {again}", flush=True)
        traceback.print_exc()
        return
    shutil.rmtree(folder)
    seen.update(f"fault: {fault}" for fault in outcome.seen)
    seen["versions"] += outcome.versions
    print(
        f"round {recipe.seed}: {recipe}: {outcome.versions} versions, {outcome.rows} rows, "
        f"{outcome.seconds:.0f} s: exact",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
