"""What a round is: drawn from its seed alone, so that a failing round can be repeated."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["FAULTS", "SINKS", "STORES", "Recipe"]

STORES = ("local", "s3", "az", "gs")
SINKS = ("jsonl", "files", "delta", "sqlite", "duckdb")
#: What happens to the daemon, its surroundings, or its store.
FAULTS = (
    "kill", "terminate", "stand still", "two daemons", "few descriptors", "no room", "network",
)  # fmt: skip


@dataclass(frozen=True)
class Recipe:
    """One round. ``cdf``: the writer records its changes; otherwise they are derived."""

    seed: int
    store: str
    sink: str
    cdf: bool
    partitioned: bool
    faults: tuple[str, ...]

    @classmethod
    def drawn(cls, seed: int, stores: Sequence[str] = STORES) -> Recipe:
        """The round of a seed, with one of the stores that are here."""
        chance = random.Random(seed)
        sink, cdf, partitioned = chance.choice(SINKS), chance.random() < 0.5, chance.random() < 0.3
        faults = chance.choices(FAULTS, k=chance.randint(3, 6))
        store = chance.choice(stores)  # last, so that the rest is the same with fewer stores
        if store == "local":
            faults = ["kill" if fault == "network" else fault for fault in faults]
        return cls(seed, store, sink, cdf, partitioned, tuple(faults))

    def __str__(self) -> str:
        kind = f"{'recorded' if self.cdf else 'derived'}{', partitioned' * self.partitioned}"
        return f"{self.store} ({kind}) -> {self.sink}: {', '.join(self.faults)}"
