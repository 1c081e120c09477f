"""Refusals: the protocol's error bodies, and which error of ours becomes which of them."""

from __future__ import annotations

from tailer.errors import (
    ConfigError,
    CorruptLog,
    DataLoss,
    TableError,
    TailerError,
    TransientError,
    UnsupportedTable,
)
from tailer.sharing.model import ErrorBody

__all__ = ["Refusal", "invalid", "not_found", "refusal_of", "unsupported"]


class Refusal(Exception):
    """An answer that is an error: its status, body, and the seconds to wait where that helps."""

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(code, message)
        self.retry_after_s = retry_after_s


def invalid(message: str) -> Refusal:
    """A parameter is wrong, or the table's sharing does not allow it."""
    return Refusal(400, "INVALID_PARAMETER_VALUE", message)


def unsupported(message: str) -> Refusal:
    """The client, or this server, lacks what the table needs."""
    return Refusal(400, "UNSUPPORTED_OPERATION", message)


def not_found(what: str) -> Refusal:
    """There is no such thing, or it is not for this recipient: the two can't be told apart."""
    return Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"{what} does not exist")


def refusal_of(error: TailerError) -> Refusal:
    """The refusal for an error of the reading side. The table's address stays unsaid."""
    match error:
        case TransientError():
            return Refusal(
                500, "INTERNAL_ERROR", "the table can't be read at the moment",
                error.retry_after_s or 1.0,
            )  # fmt: skip
        case UnsupportedTable():
            return unsupported(error.what)
        case DataLoss():
            return invalid(f"{error.what}; ask for a newer version")
        case CorruptLog():
            return Refusal(500, "INTERNAL_ERROR", "the table's log is damaged")
        case TableError():
            return invalid(error.what)
        case ConfigError():
            return invalid(str(error))
    return Refusal(500, "INTERNAL_ERROR", "the server made a mistake")
