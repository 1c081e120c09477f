"""What a seed makes of a history: its parts, its faults, and the steps of the world.

:class:`Recipe` names a history, whole or shrunk, by one line of text.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal, Self

from tailer.feed.policy import Policies
from tailer.plan.rules import ChangeSource
from tests.simulation.world import FAULTS
from tests.simulation.writer import OPERATIONS

StoreKind = Literal["disk", "ahead"]
OffsetsKind = Literal["object", "local"]
SinkKind = Literal["plain", "transactional", "copy", "in_flight", "mirror", "history"]

#: What the world does besides the writer's operations, and how often.
ACTIONS = {
    "kill": 6, "freeze": 5, "restart": 2, "reload": 2, "power cut": 2, "clock": 1,
    "pause": 2, "resume": 2, "stop": 1, "skip": 2, "resnapshot": 2,
    "vacuum": 1, "clean_up": 1, "poison": 1,
}  # fmt: skip
#: What ends a history, because the feed must refuse to go on.
LAST_ACTIONS = ("replace", "go_back", "demand")
#: Where feeds start, and how often; the time is before the first commit.
_STARTS = {"0": 6, "snapshot": 3, "latest": 1, "earliest": 1, "2025-12-31T00:00:00Z": 1}
_RATES = (0.01, 0.02, 0.05, 0.15)
#: How many histories are short. They find simple faults early; the faults that need several things
#: to meet are found by long ones, in less processor time than by many short ones.
_SHORT = 0.6


#: The share of tables whose commits a catalog ratifies.
_CATALOGS = 0.2
#: The share of the sinks without progress that have several requests on their way.
_IN_FLIGHT = 0.5
#: How many of the sinks with progress are databases, and how many of these keep versions; and of
#: all of them, how many are taken back, or repaired.
_DATABASES, _HISTORIES, _CURED = 0.6, 0.5, 0.6
#: How often a feed is taken back while its owner stands still.
_FROZEN = 0.5
#: The share of feeds that select some rows.
_SELECTS = 0.25


@dataclass(frozen=True, slots=True)
class Recipe:
    """One history: a seed, and of its steps and faults those that are kept; None: all.

    As text: ``4711``, or ``4711 steps 0 3 faults 7``.
    """

    seed: int
    steps: tuple[int, ...] | None = None
    faults: tuple[int, ...] | None = None

    def __str__(self) -> str:
        parts = [str(self.seed)]
        for name, numbers in (("steps", self.steps), ("faults", self.faults)):
            if numbers is not None:
                parts += [name, *map(str, numbers)]
        return " ".join(parts)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the recipe of a text. Raises ValueError for any other text."""
        seed, *rest = text.split()
        found: dict[str, list[int]] = {}
        name = ""
        for word in rest:
            if word in ("steps", "faults"):
                name = word
                found[name] = []
            else:
                found[name].append(int(word))
        kept = {name: tuple(numbers) for name, numbers in found.items()}
        return cls(int(seed), kept.get("steps"), kept.get("faults"))


@dataclass(frozen=True, slots=True)
class Step:
    """What happens at a time, in simulated seconds: an operation of the writer, or an action."""

    at: float
    what: str

    def __str__(self) -> str:
        return f"{self.what} at {self.at:.1f} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts of a history, drawn from its seed.

    With ``catalog``, a catalog ratifies the table's commits. ``even``: the feed selects rows with
    even ids. ``rates`` are the chances of its
    faults, ``shuffled`` whether callbacks that are ready at one time run in any order.
    """

    store: StoreKind
    offsets: OffsetsKind
    sink: SinkKind
    daemons: int
    start: str
    lease_s: float
    batch_rows: int
    change_source: ChangeSource
    paired: bool
    policies: Policies
    shuffled: bool
    catalog: bool
    even: bool
    rates: dict[str, float] = field(hash=False)
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, recipe: Recipe) -> Self:
        """Return the plan of a recipe."""
        rng = random.Random(f"plan {recipe.seed}")
        catalog = random.Random(f"of a catalog {recipe.seed}").random() < _CATALOGS
        chosen = rng.sample(sorted(FAULTS), rng.randint(0, 5))
        steps = _steps(rng)
        if catalog:  # which never takes a version back
            steps = [Step(s.at, "demand") if s.what == "go_back" else s for s in steps]
        rng.random()  # nothing uses it; without it, each seed would be another history
        kinds: tuple[SinkKind, ...] = ("plain", "transactional", "copy")
        sink: SinkKind = rng.choice(kinds)
        if sink == "plain" and random.Random(f"of requests {recipe.seed}").random() < _IN_FLIGHT:
            sink = "in_flight"
        if sink == "transactional":
            sink, more = _cure(random.Random(f"of a cure {recipe.seed}"), steps)
            steps += more
        return cls(
            store=rng.choices(["disk", "ahead"], [4, 5])[0],  # type: ignore[arg-type]
            offsets=rng.choices(["object", "local"], [2, 1])[0],  # type: ignore[arg-type]
            sink=sink,
            daemons=rng.choices([1, 2, 3], [4, 4, 1])[0],
            start=rng.choices([*_STARTS], [*_STARTS.values()])[0],
            lease_s=rng.choice([5.0, 15.0, 60.0]),
            batch_rows=rng.choice([2, 131_072]),
            change_source="derived" if rng.random() < 0.05 else "auto",
            paired=rng.random() < 0.2 and sink not in ("in_flight", "history"),
            policies=Policies(
                on_data_loss=rng.choice(["fail", "skip", "snapshot"]),
                on_schema_change=rng.choice(["continue", "pause"]),
                on_reject="park" if sink in ("plain", "in_flight") else "fail",
            ),
            shuffled=rng.random() < 0.3,
            catalog=catalog,
            even=random.Random(f"of a selection {recipe.seed}").random() < _SELECTS,
            rates={kind: rng.choice(_RATES) for kind in chosen},
            steps=tuple(
                s for n, s in enumerate(steps) if recipe.steps is None or n in recipe.steps
            ),
        )


def _cure(rng: random.Random, steps: list[Step]) -> tuple[SinkKind, list[Step]]:
    """Return what a sink with progress is, and further steps, in which it is taken back or is
    repaired while the table changes."""
    sink: SinkKind = "transactional"
    if rng.random() < _DATABASES:
        sink = "history" if rng.random() < _HISTORIES else "mirror"
    if rng.random() > _CURED or any(step.what in LAST_ACTIONS for step in steps):
        return sink, []
    at = steps[-1].at + rng.expovariate(0.2)
    weights = {name: weight for name, (weight, _) in OPERATIONS.items()}

    def changes(most: int) -> list[Step]:
        nonlocal at
        found = []
        for _ in range(rng.randint(1, most)):
            at += rng.expovariate(5.0)
            found.append(Step(at, rng.choices([*weights], [*weights.values()])[0]))
        return found

    if sink == "mirror":
        return sink, [Step(at, "damage"), Step(at, "repair"), *changes(4)]
    if rng.random() < _FROZEN:  # the owner does not know that it has been taken back
        before = changes(3)
        at += rng.uniform(0.0, 1.0)
        return sink, [*before, Step(at, "freeze"), Step(at + 0.1, "take_back"), *changes(3)]
    return sink, [Step(at, "rewind"), *changes(4)]


def _steps(rng: random.Random) -> list[Step]:
    weights = {name: weight for name, (weight, _) in OPERATIONS.items()}
    steps, at = [], 0.0
    early = rng.randint(0, 3)
    size = rng.randint(1, 3) if rng.random() < _SHORT else rng.randint(3, 9)
    for number in range(size):
        known = weights if number < early or rng.random() < 0.65 else ACTIONS
        at += 0.0 if number < early else rng.expovariate(0.5)
        steps.append(Step(at, rng.choices([*known], [*known.values()])[0]))
    if rng.random() < 0.1:
        steps.append(Step(at + rng.expovariate(0.5), rng.choice(LAST_ACTIONS)))
    return steps
