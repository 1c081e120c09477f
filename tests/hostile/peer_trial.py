"""A daemon of limited memory whose peer lies: it says what it waits for, and loses nothing.

    python -m tests.hostile.peer_trial [--peers redis,s3] [--lies WORD ...]

tries every lie in place of the answers of each peer, in the midst of its session and at the next
connection, and prints a line for each: after how many seconds the daemon said so, the most memory
that it had, and its sentence.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.hostile.lies import MAY_STOP, lies_of
from tests.hostile.peers import PEERS, PROTOCOL_OF, HostilePeer, at_peer
from tests.support.components import free_port
from tests.support.outcomes import commit
from tests.support.programs import Program, started
from tests.support.waiting import eventually
from tests.torture.servers import Servers

#: Address space that the daemon may have: most of it is reserved by libraries and never touched.
ADDRESS_BYTES_MAX = 4 * 2**30
#: What it may take: itself with the libraries of a peer, and some answers of a legal size.
RESIDENT_MIB_MAX = 500
#: How long a line of its log may be.
SENTENCE_MAX = 5000
PATIENCE_S = float(os.environ.get("TAILER_HOSTILE_S", "200"))


@dataclass(frozen=True)
class Seen:
    """What a daemon did about a lie: ``said`` after so many seconds, with so much memory."""

    said: str
    seconds: float
    peak_mib: int


class Stopped(AssertionError):
    """A feed has stopped for good."""


class Trial:
    """A daemon with a feed for each peer."""

    def __init__(self, peers: Mapping[str, HostilePeer], program: Program, http: int) -> None:
        self.peers, self.program, self._http = peers, program, http
        self._pid = program.process.pid
        limits = (ADDRESS_BYTES_MAX, ADDRESS_BYTES_MAX)
        resource.prlimit(self._pid, resource.RLIMIT_AS, limits)

    def _states(self) -> dict[str, dict[str, Any]]:
        """What the daemon says of each feed; nothing, if it does not answer yet."""
        assert self.program.process.poll() is None, str(self.program)
        with suppress(OSError):
            url = f"http://127.0.0.1:{self._http}/api/v1/feeds"
            with urllib.request.urlopen(url, timeout=30) as answer:
                return {feed["name"]: feed for feed in json.load(answer)["feeds"]}
        return {}

    def lie(self, names: Mapping[str, str]) -> dict[str, Seen]:
        """Have peers tell lies, by name, while there is a row to be delivered, until the daemon has
        said so of each and tried again; then their rows are delivered."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")
        begun, before = time.monotonic(), len(self.program.errors)
        for kind, name in names.items():
            peer = self.peers[kind]
            peer.link.met = 0
            peer.link.answer_by(lies_of(PROTOCOL_OF[kind])[name], peer.lied_to(name))
            peer.insert()
        seen: dict[str, tuple[str, float]] = {}

        def all_said() -> bool:
            for kind in names.keys() - seen.keys():
                if said := self._said(kind, before):
                    seen[kind] = said, time.monotonic() - begun
            return len(seen) == len(names)

        eventually(all_said, PATIENCE_S, lambda: f"of {names.keys() - seen.keys()} {self.program}")
        for kind in names:
            self.peers[kind].link.heal()
            self.peers[kind].insert()  # what the lie was about may have come before it
        self.wait_for_all()
        return {kind: Seen(*said, self._peak_mib()) for kind, said in seen.items()}

    def _said(self, kind: str, before: int) -> str:
        """The sentence about a feed, once its peer was tried again behind it."""
        of = f"feed {kind} "
        lines = [line for line in self.program.errors[before:] if of in line]
        if any(f"{of}stopped" in line for line in lines):
            raise Stopped(lines[-1])
        said = [line for line in lines if f"{of}tries again" in line]
        if said:
            return said[-1] if self.peers[kind].link.met > 2 else ""
        return "delivered" if self._has_all(self._states().get(kind, {}), kind) else ""

    def _has_all(self, feed: Mapping[str, Any], kind: str) -> bool:
        """Whether a feed is behind the last version that was written, by its status."""
        done = (feed.get("offset") or {}).get("version", 0) > self.peers[kind].written
        return bool(done and feed["state"] == "following")

    def wait_for_all(self) -> None:
        """Wait until every row has come."""

        def all_come() -> bool:
            states = self._states()
            return bool(states) and all(
                self._has_all(states[kind], kind) and len(peer.ids()) >= peer.written
                for kind, peer in self.peers.items()
            )

        eventually(all_come, PATIENCE_S, lambda: f"{self._states()} {self.program}")

    def _peak_mib(self) -> int:
        for line in Path(f"/proc/{self._pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) // 1024
        raise AssertionError("the kernel does not tell the peak")


@contextmanager
def trying(kinds: Sequence[str], folder: Path, servers: Servers) -> Iterator[Trial]:
    """A daemon that has delivered a row from or to each peer; at the end it has every row, once
    where that is promised, and stops on SIGTERM."""
    with ExitStack() as stack:
        peers = {}
        for kind in kinds:
            (folder / kind).mkdir()
            peers[kind] = stack.enter_context(at_peer(kind, folder / kind, servers))
            stack.callback(peers[kind].link.heal)
            peers[kind].insert()
        http, config = free_port(), folder / "tailer.toml"
        daemon = f'[daemon]\nhttp = "127.0.0.1:{http}"\nstop_s = 5\nstate = "state"\n'
        config.write_text("\n".join([daemon, *(peer.config() for peer in peers.values())]))
        with started("run", config, dev=False) as program:
            trial = Trial(peers, program, http)
            trial.wait_for_all()
            yield trial
            assert program.stop() == 0
        for peer in peers.values():
            assert peer.ids() == list(range(1, peer.written + 1))
        assert not any("Traceback" in line for line in program.errors), str(program)
        assert max(map(len, program.errors)) < SENTENCE_MAX


def _line(kind: str, name: str, seen: Seen | str) -> str:
    if isinstance(seen, str):
        return f"{kind:9} {name:38} FAILED {seen}"
    said = seen.said if len(seen.said) < 400 else f"{seen.said[:300]}... ({len(seen.said)})"
    return f"{kind:9} {name:38} {seen.seconds:6.1f} s {seen.peak_mib:5} MiB {said}"


def _record(file: Path, kind: str, name: str, seen: Seen, outcome: str = "") -> None:
    outcome = outcome or ("taken" if seen.said == "delivered" else "again")
    line = {"peer": kind, "lie": name, "outcome": outcome, "seconds": round(seen.seconds, 1),
            "mib": seen.peak_mib, "commit": commit()}  # fmt: skip
    with file.open("a", encoding="utf-8") as lines:
        lines.write(json.dumps(line) + "\n")


def main(arguments: Sequence[str]) -> None:
    """Try lies one by one."""
    parser = argparse.ArgumentParser(prog="tests.hostile.peer_trial", description=__doc__)
    parser.add_argument("--peers", default=",".join(PEERS))
    parser.add_argument("--lies", nargs="*", default=[""])
    parser.add_argument("--results", type=Path, help="add a line of JSON for each lie")
    asked = parser.parse_args(arguments)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        servers = Servers(stack, folder)
        for kind in asked.peers.split(","):
            names = [
                name
                for name in lies_of(PROTOCOL_OF[kind])
                if any(word in name for word in asked.lies)
            ]
            while names:
                own = Path(tempfile.mkdtemp(dir=folder))
                name = names[0]
                try:
                    with trying([kind], own, servers) as trial:
                        while names:
                            name = names.pop(0)
                            seen = trial.lie({kind: name})
                            print(_line(kind, name, seen[kind]), flush=True)
                            if asked.results:
                                _record(asked.results, kind, name, seen[kind])
                except Stopped as e:
                    stops = name in MAY_STOP.get(kind, MAY_STOP["any"])
                    seen = {kind: Seen(f"{'' if stops else 'FAILED '}{e}", 0.0, 0)}
                    print(_line(kind, name, seen[kind]), flush=True)
                    if asked.results and stops:
                        _record(asked.results, kind, name, seen[kind], "stops")
                except AssertionError as e:
                    print(_line(kind, name, str(e)[-1500:]), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
