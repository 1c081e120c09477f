"""A grammar of legal Delta logs: a history is a few features, and steps drawn from seeds.

A history is one line of text, ``seed | features | steps | without``::

    17 | cdf dvs name | append:3 delete:9 checkpoint:1 | floats

It has no variants, CHAR columns, widened or dropped nested fields, removal of column mapping or of
features, two-level lists, old calendars, files of more than a few rows, or damage: those have tests
elsewhere. Integers that a reader needs are never spelled 5.0: the text says Long.

Every step can be taken from any table, so that a shorter history is a history too. ``without``
switches oddities off that no reader should notice (:data:`ODDITIES`).
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from tests.fuzz import commits, steering, upkeep
from tests.fuzz.odd_json import ODD
from tests.fuzz.table import Table

FEATURES = ("cdf", "dvs", "name", "id", "tracking", "times", "partitions", "v2", "widening", "ntz",
            "mapping_later", "legacy")  # fmt: skip
ODDITIES = (*ODD, "forms", "paths", "stats", "more_actions", "shuffle")

STEPS: dict[str, tuple[int, Callable[[Table], None]]] = {
    "append": (6, commits.append),
    "remove": (3, commits.remove),
    "delete": (5, commits.delete_by_vector),
    "rewrite": (5, commits.rewrite),
    "optimise": (2, commits.optimise),
    "again": (3, commits.add_again),
    "twice": (2, commits.refer_again),
    "twin": (1, commits.twin),
    "store_again": (1, commits.store_again),
    "mixed": (4, commits.mixed),
    "columns": (4, steering.change_columns),
    "overwrite": (2, steering.overwrite),
    "properties": (2, steering.change_properties),
    "track": (1, steering.enable_tracking),
    "stamp": (1, steering.enable_times),
    "nothing": (1, commits.nothing),
    "checkpoint": (3, upkeep.checkpoint),
    "compact": (2, upkeep.compact),
    "checksum": (1, upkeep.checksum),
    "clean": (1, upkeep.clean),
    "noise": (1, upkeep.noise),
}
_NAMES, _WEIGHTS = list(STEPS), [weight for weight, _ in STEPS.values()]


@dataclass(frozen=True)
class History:
    """A history; ``str`` gives the line that it is read from."""

    seed: int
    features: tuple[str, ...]
    steps: tuple[tuple[str, int], ...]
    without: tuple[str, ...] = ()

    def __str__(self) -> str:
        steps = " ".join(f"{name}:{seed}" for name, seed in self.steps)
        return (
            f"{self.seed} | {' '.join(self.features)} | {steps} | {' '.join(self.without)}".strip()
        )

    @classmethod
    def parse(cls, text: str) -> History:
        """The history that one line names."""
        seed, features, steps, without = (part.split() for part in text.split("|"))
        pairs = (step.split(":") for step in steps)
        named = tuple((name, int(number)) for name, number in pairs)
        return cls(int(seed[0]), tuple(features), named, tuple(without))

    def simpler(self) -> list[History]:
        """Histories with less in them, the shortest first."""
        steps = self.steps
        sizes = (size for size in (len(steps) // 2, len(steps) // 4, 1) if size)
        parts = ((at, at + size) for size in sizes for at in range(0, len(steps), size))
        found = [replace(self, steps=steps[:at] + steps[end:]) for at, end in parts]
        fewer = (tuple(f for f in self.features if f != name) for name in self.features)
        found += [replace(self, features=features) for features in fewer]
        rest = (name for name in ODDITIES if name not in self.without)
        return [*found, *(replace(self, without=(*self.without, name)) for name in rest)]


def draw(seed: int) -> History:
    """The history of a seed: the same one on every machine."""
    rng = random.Random(seed)
    chance = {"cdf": 0.8, "dvs": 0.5, "name": 0.2, "id": 0.15, "tracking": 0.2, "times": 0.25,
              "legacy": 0.15, "mapping_later": 0.1}  # fmt: skip
    features = [f for f in FEATURES if rng.random() < chance.get(f, 0.35)]
    names = rng.choices(_NAMES, _WEIGHTS, k=rng.randint(2, 7))
    steps = tuple((name, rng.randrange(10**6)) for name in names)
    without = tuple(name for name in ODDITIES if rng.random() < 0.5)
    return History(seed % 10**6, tuple(features), steps, without)


def write(history: History) -> Table:
    """The table of a history."""
    table = Table(random.Random(history.seed), history.features, set(ODDITIES) - {*history.without})
    steering.create(table)
    for number, (name, seed) in enumerate(history.steps):
        # Not of the steps before it: those may be left out.
        table.rng = random.Random(seed)
        table.story.append(f"step {number + 1}: {name}:{seed}")
        STEPS[name][1](table)
    return table
