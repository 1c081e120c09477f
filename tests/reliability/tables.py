"""The tables of docs/reliability.md, made from what runs have seen: docs/reliability.json."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tests.support.source import ROOT

DATA = ROOT / "docs" / "reliability.json"

_DATABASES = ("clickhouse", "elasticsearch", "iceberg", "iceberg-rest", "search")
#: What is killed, in the order of the page, with what must hold.
KILLS = {
    "JSON lines, local, two daemons": "P1, P4, P6, P9",
    "JSON lines, s3, two daemons": "P1, P4, P6, P9",
    "JSON lines, az, two daemons": "P1, P4, P6, P9",
    "JSON lines, gs, two daemons": "P1, P4, P6, P9",
    "Kafka, exactly once, two daemons": "P1, P3, P5, P6",
    "Kafka, exactly once, broker and daemon, keyed": "P1, P3, P5",
    "Kafka, exactly once, broker and daemon, without keys": "P1, P5",
    "Kafka, exactly once, three brokers": "P1, P3, P5",
    "Spark pipeline to Kafka, exactly once": "P1, P5, P9",
    "delta": "P1, P5, P6",
    "sqlite": "P1, P5, P6",
    "duckdb": "P1, P5, P6",
    "postgres": "P1, P5, P6",
    "mysql": "P1, P5, P6",
    **dict.fromkeys(_DATABASES, "P1, P5, P6"),
    "files": "P1, P3, P5, P6",
    **dict.fromkeys(("nats", "nats-mirror", "redis", "redis-mirror"), "P1, P5, P6"),
    **dict.fromkeys(("http", "pubsub", "rabbitmq", "firehose", "kinesis", "sns", "sqs"), "P1, P4"),
}
#: Random histories, with what must hold.
HISTORIES = {
    "simulator": "all but P7, P10",
    "catalog, real server": "P1, P2, P6",
    "catalog": "P1, P2, P6",
    "protocol fuzz": "P2",
}
Line = Mapping[str, Any]


def read() -> dict[str, Any]:
    """The data: ``seen``, ``torture``, ``soak``, ``lies`` and ``found``."""
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def with_seen(old: Sequence[Line], new: Sequence[Line]) -> list[Line]:
    """Lines of runs, where a component's newer lines replace its older ones."""
    replaced = {line["component"] for line in new}
    unknown = replaced - KILLS.keys() - HISTORIES.keys()
    assert not unknown, f"components that no table has: {unknown}"
    order = [*KILLS, *HISTORIES]
    lines = [*(line for line in old if line["component"] not in replaced), *new]
    return sorted(lines, key=lambda line: order.index(line["component"]))


def with_lies(old: Sequence[Line], new: Sequence[Line]) -> list[Line]:
    """Lines of lies, where a newer one of the same peer and lie replaces the older."""
    kept = {(line["peer"], line["lie"]): line for line in (*old, *new)}
    return list(kept.values())


def _rows(names: Mapping[str, str], sums: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """A row for each component that was tried: what must hold, sums of its lines, their origin."""
    lines = defaultdict(list)
    for line in read()["seen"]:
        lines[line["component"]].append(line)
    return [
        (
            name, promises, *(_sum(lines[name], *each) for each in sums),
            ", ".join(f"{line['seed']} ({line['commit']})" for line in lines[name]),
        )
        for name, promises in names.items()
        if name in lines
    ]  # fmt: skip


def _sum(lines: Sequence[Line], *names: str) -> str:
    values = [line[name] for line in lines for name in names if name in line]
    return f"{sum(values):,}" if values else ""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]


def _kills() -> list[str]:
    head = (
        "component", "promises", "kills", "versions", "events, or rows at the end", "repeated",
        "lost", "doubled or changed", "seed (commit)",
    )  # fmt: skip
    sums = (("kills",), ("versions",), ("events", "rows"), ("repeated",), ("lost",),
            ("doubled", "changed"))  # fmt: skip
    return _table(head, _rows(KILLS, sums))


def _histories() -> list[str]:
    head = ("what", "promises", "histories", "faults", "broken", "first seed (commit)")
    return _table(head, _rows(HISTORIES, (("histories",), ("faults",), ("broken",))))


def _torture() -> list[str]:
    torture = read()["torture"]
    if not torture:
        return ["No summary of `make torture` is here."]
    seeds, commits = torture["seeds"], torture["commit"]
    if isinstance(commits, str):
        seeds, commits = [seeds], [commits]
    runs = [(f"{a} to {b}", at) for (a, b), at in zip(seeds, commits, strict=True)]
    facts = ", ".join(
        f"{torture[name]:,} {name}" for name in ("versions", "rows", "events", "failed")
    )
    rows = [
        (dimension, value, f"{counts['rounds']:,}", f"{counts['times']:,}", str(counts["failed"]))
        for dimension in ("store", "sink", "proof", "writer", "fault")
        for value, counts in torture["by"].get(dimension, {}).items()
    ]
    failed = ", ".join(str(one["seed"]) for one in torture["failures"])
    return [
        f"{torture['rounds']:,} rounds in {torture['seconds'] / 3600:.1f} hours: {facts}.",
        "",
        *_table(("seeds", "commit"), runs),
        "",
        *_table(("", "which", "rounds", "times", "failed"), rows),
        "",
        f"Seeds of failed rounds: {failed or 'none'}.",
    ]


def _soak() -> list[str]:
    soak = read()["soak"]
    if not soak:
        return ["No soak is recorded."]
    rows = [
        (
            one["name"].replace("_", " "), f"{one['first']:,.2f}", f"{one['last']:,.2f}",
            f"{one['growth']:+,.2f}", f"{one['allowed']:,.2f}",
        )
        for one in soak["measures"]
    ]  # fmt: skip
    head = ("measure", "at the half", "at the end", "growth by its slope", "allowed")
    run = f"{soak['commits']:,} commits, seed {soak['seed']} ({soak['commit']})"
    return [
        f"{soak['feeds']} feeds for {soak['hours']:.1f} hours, {run}:",
        "",
        *_table(head, rows),
        "",
        "![What the daemon took over the hours](reliability-soak.svg)",
    ]


def _peers() -> list[str]:
    lines = defaultdict(list)
    for line in read()["lies"]:
        lines[line["peer"]].append(line)
    rows = []
    for peer, tried in lines.items():
        counts = Counter(line["outcome"] for line in tried)
        slowest = max(tried, key=lambda line: line["seconds"])
        told = [f"{counts[kind]}" for kind in ("again", "taken", "stops")]
        most = max(line["mib"] for line in tried)
        late = f"{slowest['seconds']:.0f} s: {slowest['lie']}"
        rows.append((peer, str(len(tried)), *told, f"{most} MiB", late))
    head = ("peer", "lies", "tried again", "taken", "stops", "most memory", "said at the latest")
    return _table(head, rows)


def _lies() -> list[str]:
    peers = list(dict.fromkeys(line["peer"] for line in read()["lies"]))
    outcomes: dict[str, dict[str, str]] = defaultdict(dict)
    for line in read()["lies"]:
        outcomes[line["lie"]][line["peer"]] = line["outcome"]
    rows = [(lie, *(of.get(peer, "") for peer in peers)) for lie, of in outcomes.items()]
    return _table(("in the place of an answer", *peers), rows)


def _found() -> list[str]:
    rows = [(one["by"], one["promise"], one["what"], one["commit"]) for one in read()["found"]]
    return _table(("found by", "promise", "what was wrong", "mended with"), rows)


SECTIONS: Mapping[str, Callable[[], list[str]]] = {
    "found": _found,
    "histories that were run": _histories,
    "kills": _kills,
    "lies of each peer": _peers,
    "lies one by one": _lies,
    "rounds of torture": _torture,
    "soak": _soak,
}
