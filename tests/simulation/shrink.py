"""From a failing history to a short one, and to the text that a person reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

from tests.simulation.history import Outcome, run_history
from tests.simulation.plan import Plan, Recipe

#: The lines of a story that are shown, and their characters.
_LINES_MAX = 20
_WIDTH = 200


def shrunk(failed: Outcome, runs_max: int = 200) -> Outcome:
    """Return a history with fewer steps and faults that breaks a promise of the same number.

    Steps and faults are left out in halves, quarters and one by one, while it still fails, at most
    ``runs_max`` times.
    """
    promise = _promise(failed)
    best = failed
    left = runs_max

    def still_fails(recipe: Recipe) -> bool:
        nonlocal best, left
        if left <= 0:
            return False
        left -= 1
        outcome = run_history(recipe)
        if outcome.broken is None or _promise(outcome) != promise:
            return False
        best = outcome
        return True

    recipe = failed.recipe
    steps = recipe.steps or range(len(Plan.of(Recipe(recipe.seed)).steps))
    recipe = _fewer(steps, lambda kept: replace(recipe, steps=kept), still_fails)
    faults = recipe.faults or range(best.faults)
    _fewer(faults, lambda kept: replace(recipe, faults=kept), still_fails)
    return best


def _promise(outcome: Outcome) -> str:
    return str(outcome.broken).partition(":")[0]


def _fewer(
    numbers: Iterable[int],
    recipe_of: Callable[[tuple[int, ...]], Recipe],
    still_fails: Callable[[Recipe], bool],
) -> Recipe:
    kept = tuple(numbers)
    size = max(1, len(kept))
    while True:
        at = 0
        while at < len(kept):
            fewer = kept[:at] + kept[at + size :]
            if still_fails(recipe_of(fewer)):
                kept = fewer
            else:
                at += size
        if size == 1:
            return recipe_of(kept)
        size = (size + 1) // 2


def story(outcome: Outcome) -> str:
    """Return what happened, in about twenty lines, and the line that makes it a test."""
    plan = outcome.plan
    parts = f"{plan.daemons} daemons, table: {plan.store}, state: {plan.offsets}, sink: {plan.sink}"
    lines = [f"{at:9.3f} {who:10} {what}"[:_WIDTH] for at, who, what in outcome.story]
    if len(lines) > _LINES_MAX:
        hidden = f"          ({len(lines) - _LINES_MAX} lines are left out)"
        lines = [*lines[:5], hidden, *lines[5 - _LINES_MAX :]]
    test = f'    "{outcome.recipe}",  # {outcome.broken}'[:_WIDTH]
    return "\n".join([f"history {outcome.recipe}: {parts}", *lines, "As a test:", test])
