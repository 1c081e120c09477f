"""Errors as Spark's users see them: the sentence, and no traceback through our modules.

Spark prints an exception's whole traceback, about forty lines. Its workers leave the traceback out
if ``SPARK_HIDE_TRACEBACK`` is set when they report the error; they end right after, so nothing
else is hidden by that.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any, TypeVar, cast

from tailer.errors import TailerError
from tailer.spark.hadoop_store import READ_FILE, find_fault

F = TypeVar("F", bound=Callable[..., Any])


class TailerSourceError(Exception):
    """An error for Spark: one sentence, named by the family of who must act."""


def in_worker() -> bool:
    """Return whether this is one of Spark's Python processes, and not the user's."""
    return (
        "PYTHON_WORKER_FACTORY_SECRET" in os.environ
        or "PYTHON_WORKER_FACTORY_SOCK_DIR" in os.environ
    )


def make_spark_error(sentence: str) -> TailerSourceError:
    """Return the error that says a sentence, for Spark."""
    if in_worker():
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"
    return TailerSourceError(sentence)


def _convert_error(error: TailerError) -> TailerSourceError:
    return make_spark_error(f"[{error.family}] {error}")


def _convert_row_errors(rows: Iterator[Any]) -> Iterator[Any]:
    try:
        yield from rows
    except TailerError as e:
        raise _convert_error(e) from None


def one_sentence(method: F) -> F:
    """Wrap a method of the source so that its errors, and its iterator's, are one sentence."""

    @wraps(method)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            answer = method(*arguments, **named)
        except TailerError as e:
            raise _convert_error(e) from None
        return _convert_row_errors(answer) if isinstance(answer, Iterator) else answer

    return cast("F", call)


#: One of our sentences in Spark's text of an error, after the name of its class.
_SENTENCE = re.compile(rf"{TailerSourceError.__name__}: (\[\w+\] .*)")


def begin_with_sentence(function: F) -> F:
    """Wrap a function that Spark calls with a batch, so that Spark's message begins with our
    sentence, if the error has one.

    Spark puts the traceback into its message, and a traceback begins with the error's cause: so the
    sentence is its own cause, too.
    """

    @wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except Exception as e:
            sentence = _find_sentence(e)
            if sentence is None:
                raise
        raise TailerSourceError(sentence) from TailerSourceError(sentence)

    return cast("F", call)


def _find_sentence(error: Exception) -> str | None:
    if isinstance(error, TailerError):
        return f"[{error.family}] {error}"
    if isinstance(error, TailerSourceError):
        return str(error)
    text = str(error)
    if match := _SENTENCE.search(text):
        return match[1]
    file = READ_FILE.search(text)  # by Spark's own reader
    fault = None if file is None else find_fault(text, file[1])
    return None if fault is None else f"[{fault.family}] {fault}"
