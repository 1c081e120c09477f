"""Errors as Spark's users see them: the sentence, and no traceback through our modules.

Spark prints an exception's whole traceback, about forty lines. Its workers leave the traceback out
if ``SPARK_HIDE_TRACEBACK`` is set when they report the error; they end right after, so nothing
else is hidden by that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar, cast

from tailer.errors import TailerError

__all__ = ["TailerSourceError", "in_worker", "one_sentence"]

F = TypeVar("F", bound=Callable[..., Any])


class TailerSourceError(Exception):
    """An error for Spark: one sentence, named by the family of who must act."""


def in_worker() -> bool:
    """Return whether this is one of Spark's Python processes, and not the user's."""
    return (
        "PYTHON_WORKER_FACTORY_SECRET" in os.environ
        or "PYTHON_WORKER_FACTORY_SOCK_DIR" in os.environ
    )


def _told(error: TailerError) -> TailerSourceError:
    if in_worker():
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return TailerSourceError(f"[{error.family}] {error}")


def _guarded(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except TailerError as e:
        raise _told(e) from None


def one_sentence(method: F) -> F:
    """Wrap a method of the source so that its errors, and its iterator's, are one sentence."""

    @wraps(method)
    def told(*arguments: Any, **named: Any) -> Any:
        try:
            found = method(*arguments, **named)
        except TailerError as e:
            raise _told(e) from None
        return _guarded(found) if isinstance(found, Iterator) else found

    return cast("F", told)
