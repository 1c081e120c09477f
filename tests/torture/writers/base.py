"""What all writers of a round do: they draw one operation after another, and count them."""

from __future__ import annotations

import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tests.integration.killing import AnyWriter
from tests.torture.places import Place
from tests.torture.recipe import Recipe

VERSION_ROWS = 60
TABLE_ROWS = 1500
#: Texts that a format or a database may get wrong.
AWKWARD = ("größe", 'a "b"', "x\\y", "new\nline", "", "\u202e", "NULL")
#: A row whose key is changed moves so far, once for each such operation.
MOVED = 1_000_000
_CAUGHT_UP_S = 15.0


class RoundWriter(AnyWriter):
    """A writer of the table ``id``, ``part``, ``name`` and what is added to it. Each operation is
    a method of its name, by its weight."""

    #: How often an operation is drawn.
    weights: ClassVar[Mapping[str, float]] = {}
    #: Those that remove what a feed may still have to read: they wait until it has read all.
    removing: ClassVar[tuple[str, ...]] = ("vacuum", "clean_log")

    def __init__(self, recipe: Recipe, place: Place, without: Sequence[str] = ()) -> None:
        super().__init__(recipe.seed)
        self.drawn = {name: by for name, by in self.weights.items() if name not in without}
        self.recipe = recipe
        self.place = place
        self.done: Counter[str] = Counter()
        self.extra = 0
        self.moves = 0
        #: A table has about so many rows at most: older ones are deleted with others.
        self.rows_max = TABLE_ROWS
        #: The first version that still has all that it needs.
        self.whole_since = 0
        self.renamed: dict[str, str] = {}
        #: What the table has, beyond what the recipe says.
        self.table_traits: list[str] = []

    def commit(self) -> None:
        [drawn] = self.random.choices(list(self.drawn), list(self.drawn.values()))
        if self.next_id < VERSION_ROWS or (drawn in self.removing and not self._caught_up()):
            drawn = "append"
        if getattr(self, drawn)() is not False:
            self.done[drawn] += 1

    def _caught_up(self) -> bool:
        until = time.monotonic() + _CAUGHT_UP_S
        while self.read_version <= self.newest and not self.ending.is_set():
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        return self.read_version > self.newest

    @abstractmethod
    def append(self) -> None:
        """Write new rows. Every writer has it; an operation that does nothing returns False."""

    @abstractmethod
    def rows(self) -> list[dict[str, Any]]:
        """The table's rows, by id."""

    def rename(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with the names that its columns have at the end."""
        renamed: dict[str, Any] = {}
        for name, value in row.items():
            last = self._last_name(name)
            # A log keeps the column of the old name beside that of the new one.
            if value is not None or last not in renamed:
                renamed[last] = value
        return renamed

    def _last_name(self, name: str) -> str:
        while name in self.renamed:
            name = self.renamed[name]
        return name

    def new_rows(self, first: int) -> list[dict[str, Any]]:
        """Rows with ids from ``first`` on."""
        names = (*AWKWARD, None)
        text = self._last_name("name")
        return [
            {
                "id": i,
                "part": i % 3,
                text: self.random.choice([*names, f"name {i}"]),
                **{f"extra{n}": self.random.choice([None, i]) for n in range(self.extra)},
            }
            for i in range(first, first + VERSION_ROWS)
        ]
