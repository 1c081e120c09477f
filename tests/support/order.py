"""The tests of what was changed come first, and what fails is said at once.

A change is what git knows as different from where the branch left ``main``, with what is not
committed yet. Without git, or without a change, the order stays as it is.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path, PurePosixPath

import pytest

from tests.support.source import ROOT

BRANCHES = ("origin/main", "main")


def sort_by_change(items: list[pytest.Item]) -> None:
    """Put the tests of changed modules first; else the order stays."""
    changes = changed_paths(ROOT)
    if not changes:
        return
    ranked = cache(lambda path: rank(path, changes))
    items.sort(key=lambda item: ranked(_below(item.path)))


def _below(path: Path) -> PurePosixPath:
    return PurePosixPath(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path)


def rank(test: PurePosixPath, changes: Sequence[PurePosixPath]) -> int:
    """How near a file of tests is to the changes: 0 if it is one of them or bears the name of a
    changed module, 1 if its folder mirrors that of one, else 2."""
    if test in changes:
        return 0
    modules = (path for path in changes if path.suffix == ".py" and path.parts[0] != "tests")
    near = [path.stem for path in modules if _mirrors(test, path)]
    named = any(f"{test.stem}_".startswith(f"test_{stem}_") for stem in near)
    return 0 if named else 1 if near else 2


def _mirrors(test: PurePosixPath, module: PurePosixPath) -> bool:
    """Whether a test's folder is for a module: it may be in ``tests`` itself, too."""
    top, *folders = module.parts[:-1] or ("",)
    if top == "sinks":
        folders.append(top)
    within = test.parts[1:-1]
    return bool(set(folders) & set(within)) if folders else top == "tailer" and not within


def changed_paths(root: Path) -> tuple[PurePosixPath, ...]:
    """The paths that differ from where the branch left ``main``, and those that are new."""
    bases = (_git(root, "merge-base", "HEAD", branch) for branch in BRANCHES)
    base = next((lines[0] for lines in bases if lines), "HEAD")
    different = _git(root, "diff", "--name-only", "--relative", base)
    new = _git(root, "ls-files", "--others", "--exclude-standard")
    return tuple(map(PurePosixPath, dict.fromkeys([*different, *new])))


def _git(root: Path, *arguments: str) -> list[str]:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return []
    return done.stdout.splitlines()
