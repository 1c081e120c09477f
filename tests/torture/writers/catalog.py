"""A writer of a table that its catalog manages: it stages, has the catalog ratify, and publishes
late; see :mod:`tests.catalog.histories`."""

from __future__ import annotations

import json
import random
from typing import Any

from tests.catalog.histories import History
from tests.torture.places import CatalogPlace, Place
from tests.torture.recipe import Recipe
from tests.torture.writers.base import RoundWriter


class CatalogWriter(RoundWriter):
    """Each version adds a row, and some remove an earlier one."""

    def __init__(self, recipe: Recipe, place: Place) -> None:
        super().__init__(recipe, place)
        assert isinstance(place, CatalogPlace)
        self.history = History(place.managed.create(), random.Random(recipe.seed))
        self.adds: dict[int, dict[str, Any]] = {}
        self.table_traits = ["catalog-managed", "in-commit timestamps"]

    def version(self) -> int:
        return self.history.end()

    def commit(self) -> None:
        table = self.history.table
        before = table.latest
        if self.adds and self.random.random() < 0.3:
            self._remove(self.random.choice(sorted(self.adds)))
            self.done["delete"] += 1
        else:
            self.history.step()
            self.done["append" if table.latest > before else "publish"] += 1
        if table.latest > before:
            self._note(table.latest)

    def _note(self, version: int) -> None:
        table = self.history.table
        staged = table.log / "_staged_commits" / table.staged[version].name
        actions = map(json.loads, staged.read_text().splitlines())
        self.adds[version] = next(action["add"] for action in actions if "add" in action)

    def _remove(self, version: int) -> None:
        """A version that removes the row of an earlier one, and adds its own."""
        add = self.adds.pop(version)
        text = f"v{self.history.table.latest + 1}-{self.random.getrandbits(32)}"
        remove = {"path": add["path"], "partitionValues": {}, "size": add["size"],
                  "deletionTimestamp": add["modificationTime"], "dataChange": True,
                  "extendedFileMetadata": True}  # fmt: skip
        self.history.table.commit(text, {"remove": remove})
        self.history.texts[self.history.table.latest] = text

    def append(self) -> None:
        self.history.step()

    def rows(self) -> list[dict[str, Any]]:
        return [{"id": version, "v": self.history.texts[version]} for version in sorted(self.adds)]
