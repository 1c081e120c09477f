"""What goes on around the daemon while it is watched, and what its operator does."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import deltalake

from tests.kafka.broker import Broker
from tests.soak.feeds import LOG_KEPT, Surroundings, configuration
from tests.soak.sampling import Sampler
from tests.support.waiting import eventually

GUESTS = 5
KEPT_S = 600.0


class Hook:
    """A webhook of many feeds; ``away`` are the paths that it answers with 503 for now."""

    def __init__(self) -> None:
        self.url = ""
        self.away: frozenset[str] = frozenset()
        self.answers: Counter[int] = Counter()


@contextmanager
def run_hook() -> Iterator[Hook]:
    """A webhook on a free port."""
    hook = Hook()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            status = 503 if self.path in hook.away else 204
            hook.answers[status] += 1
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    hook.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield hook
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class Operator:
    """Rotates, reloads, pauses, looks, and removes what is old; targets fail and come back.

    Each of its works has its time between two, which ``pace`` shortens; :meth:`work` does what
    is due.
    """

    def __init__(
        self, around: Surroundings, sinks: Sequence[str], hook: Hook, broker: Broker | None,
        sampler: Sampler, chance: random.Random, pace: float = 1.0,
    ) -> None:  # fmt: skip
        self.around, self.sinks, self.hook, self.broker = around, sinks, hook, broker
        self.sampler, self.chance = sampler, chance
        self.done: Counter[str] = Counter()
        self._guests = 0
        self._prepared: set[int] = set()
        self._again: list[tuple[float, Callable[[], object]]] = []
        works: dict[Callable[[], None], float] = {
            self.look: 20, self.rotate: 60, self.remove_old: 60, self.lose_targets: 120,
            self.pause: 150, self.change_guests: 300, self.stop_broker: 900,
        }  # fmt: skip
        self._pace = pace
        self._every = {work: every * pace for work, every in works.items()}
        now = time.monotonic()
        self._due = {work: now + every / 2 for work, every in self._every.items()}

    def work(self) -> None:
        """Do what is due."""
        now = time.monotonic()
        for ready in [one for one in self._again if one[0] <= now]:
            self._again.remove(ready)
            ready[1]()
        for work, due in self._due.items():
            if due <= now:
                self._due[work] = now + self._every[work]
                work()
                self.done[work.__name__] += 1

    def end(self) -> None:
        """All that was away comes back."""
        for _, back in self._again:
            back()
        self._again.clear()

    def look(self) -> None:
        """Ask as a console that is open does."""
        name = f"t{self.chance.randrange(len(self.sinks))}"
        for path in ("/", "/api/v1/feeds", f"/api/v1/feeds/{name}", f"/api/v1/recent/{name}"):
            self.sampler.ask(path)

    def rotate(self) -> None:
        """Rename the JSON lines and reload."""
        for file in (self.around.folder / "out/jsonl").glob("*.jsonl"):
            file.rename(file.with_suffix(".old"))
        self.sampler.ask("/api/v1/reload", b"{}")

    def remove_old(self) -> None:
        """Remove published files that a reader is done with, and clean up copies."""
        until = time.time() - KEPT_S
        for file in (self.around.folder / "out/files").rglob("*.parquet"):
            with suppress(FileNotFoundError):
                if file.stat().st_mtime < until:
                    file.unlink()
        numbers = [n for n, sink in enumerate(self.sinks) if sink == "delta"]
        for number in self.chance.sample(numbers, min(3, len(numbers))):
            self._clean_up(number)

    def _clean_up(self, number: int) -> None:
        folder = self.around.folder / f"out/delta/{number}"
        with suppress(deltalake.exceptions.DeltaError):  # it may be there later, or have committed
            table = deltalake.DeltaTable(folder)
            if number not in self._prepared:
                table.alter.set_table_properties({"delta.logRetentionDuration": LOG_KEPT})
                self._prepared.add(number)
            table.create_checkpoint()
            table.cleanup_metadata()
            table.vacuum(0, dry_run=False, enforce_retention_duration=False)

    def lose_targets(self) -> None:
        """Some webhooks answer 503 for a while."""
        numbers = [n for n, sink in enumerate(self.sinks) if sink == "http"]
        some = self.chance.sample(numbers, -(-len(numbers) // 3))
        self.hook.away = frozenset(f"/{number}" for number in some)
        self._later(40, lambda: setattr(self.hook, "away", frozenset()))

    def pause(self) -> None:
        """Pause a feed for a while."""
        name = f"t{self.chance.randrange(len(self.sinks))}"
        self.sampler.ask(f"/api/v1/feeds/{name}/pause", b"{}")
        self._later(30, lambda: self.sampler.ask(f"/api/v1/feeds/{name}/resume", b"{}"))

    def change_guests(self) -> None:
        """Reload with other feeds beside those that stay; their names are new each time."""
        self._guests += GUESTS
        guests = range(self._guests, self._guests + GUESTS)
        text = configuration(self.around, self.sinks, guests)
        (self.around.folder / "tailer.toml").write_text(text)
        change = json.loads(self.sampler.ask("/api/v1/reload", b"{}"))
        assert set(change["started"]) == {f"guest-{n}" for n in guests}, change
        here = {feed["name"] for feed in self.sampler.feeds()}
        for kind in ("state", "out/guests"):
            for file in (self.around.folder / kind).glob("*"):
                name = file.name.partition(".")[0]
                name = name if name.startswith("guest-") else f"guest-{name}"
                if name.partition("-")[2].isdigit() and name not in here:
                    file.unlink()

    def stop_broker(self) -> None:
        """Kafka's broker is away for a while."""
        if self.broker is not None:
            self.broker.stop()
            self._later(20, self.broker.start)

    def _later(self, seconds: float, what: Callable[[], object]) -> None:
        self._again.append((time.monotonic() + seconds * self._pace, what))

    def wait_for_the_end(self, patience_s: float) -> None:
        """Wait until every feed follows and has read all."""

        def behind() -> list[str]:
            return [
                f"{feed['name']}: {feed['state']}, {feed['lag_versions']} versions, "
                f"{feed['last_error']}"
                for feed in self.sampler.feeds()
                if feed["state"] != "following" or feed["lag_versions"]
            ]

        eventually(lambda: not behind(), patience_s, lambda: behind()[:5], pause_s=1.0)
