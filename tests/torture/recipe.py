"""What a round is: drawn from its seed alone, so that a failing round can be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

STORES = ("local", "s3", "az", "gs", "catalog")
#: Each sink, and what may be drawn as its format.
_JSON = ("rows", "debezium", "cloudevents")
_COPY = ("mirror", "log")
FORMATS: dict[str, Sequence[str]] = {
    "jsonl": _JSON, "files": ("parquet",), "delta": _COPY, "sqlite": _COPY, "duckdb": _COPY,
    "postgres": _COPY, "mysql": _COPY, "kafka": (*_JSON, "avro", "avro envelope"),
    "iceberg": _COPY, "redis": (*_JSON, "mirror"), "search": _COPY, "clickhouse": _COPY,
    "nats": (*_JSON, "mirror"), "rabbitmq": _JSON, "http": ("cloudevents",), "sqs": _JSON,
    "sns": _JSON, "kinesis": _JSON, "firehose": _JSON, "pubsub": _JSON,
}  # fmt: skip
SINKS = tuple(FORMATS)
#: Their copies do not follow a column that is renamed, as the other writers rename some.
_JSON_COPIES = ("nats", "redis", "search")
#: Who writes the table, and how often: to start Spark is dear. Only delta-rs writes to clouds; what
#: a catalog manages has a writer of its own.
_WEIGHTS = {"deltalake": 5, "ours": 3, "spark": 2}
WRITERS = tuple(_WEIGHTS)


@dataclass(frozen=True)
class Recipe:
    """One round. ``recorded``: the writer records its changes; otherwise they are derived.
    ``faults`` are those that are possible with this store and sink."""

    seed: int
    store: str
    sink: str
    format: str
    writer: str
    recorded: bool
    partitioned: bool
    faults: tuple[str, ...]
    start: str = "snapshot"

    @classmethod
    def drawn(
        cls,
        seed: int,
        faults: Sequence[str],
        stores: Sequence[str] = STORES,
        sinks: Sequence[str] = SINKS,
        writers: Sequence[str] = WRITERS,
    ) -> Recipe:
        """The round of a seed. Each part is drawn by itself: a choice among fewer stores leaves the
        rest as it is."""
        sink = _one(seed, "sink", sinks)
        weights = [_WEIGHTS[name] for name in writers]
        [writer] = random.Random(f"{seed} writer").choices(writers, weights)
        format_ = _one(seed, "format", FORMATS[sink])
        if sink in _JSON_COPIES and format_ == "mirror":
            writer = "deltalake"
        store = _one(seed, "store", stores)
        if store == "catalog":
            writer = "catalog"
        elif writer != "deltalake":
            store = "local"
        chance = random.Random(f"{seed} faults")
        return cls(
            seed=seed,
            store=store,
            sink=sink,
            format=format_,
            writer=writer,
            recorded=store == "catalog" or _one(seed, "recorded", (True, False)),
            partitioned=store != "catalog" and _one(seed, "partitioned", (True, False, False)),
            start=_one(seed, "start", ("snapshot", "earliest")),
            faults=tuple(chance.choices(faults, k=chance.randint(3, 6))),
        )

    @property
    def traits(self) -> dict[str, list[str]]:
        """What the round is counted by."""
        table = ["recorded" if self.recorded else "derived", *["partitioned"] * self.partitioned]
        table.append(f"from {self.start}")
        return {
            "store": [self.store], "sink": [self.sink], "format": [self.format],
            "writer": [self.writer], "table": table,
        }  # fmt: skip

    def __str__(self) -> str:
        table = ", ".join(self.traits["table"])
        sink = f"{self.sink} ({self.format})"
        return f"{self.writer} on {self.store} ({table}) -> {sink}: {', '.join(self.faults)}"


def _one(seed: int, what: str, among: Sequence[T]) -> T:
    return random.Random(f"{seed} {what}").choice(among)
