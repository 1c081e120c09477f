"""Refusals: the protocol's error bodies, and their mapping from this project's errors."""

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


class Refusal(Exception):
    """An error answer: its status, body, and the seconds to wait if that helps."""

    def __init__(
        self, status: int, code: str, message: str, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.body = ErrorBody(code, message)
        self.retry_after_s = retry_after_s


def invalid_parameter(message: str) -> Refusal:
    """Return the refusal of a parameter that is wrong, or that the table's sharing forbids."""
    return Refusal(400, "INVALID_PARAMETER_VALUE", message)


def unsupported_operation(message: str) -> Refusal:
    """Return the refusal of a table that needs more than the client, or this server, supports."""
    return Refusal(400, "UNSUPPORTED_OPERATION", message)


def not_found(what: str) -> Refusal:
    """Return the refusal of an object that does not exist or is not granted; both look the same."""
    return Refusal(404, "RESOURCE_DOES_NOT_EXIST", f"{what} does not exist")


def refusal_of(error: TailerError) -> Refusal:
    """Return the refusal for a read error. It does not reveal the table's address."""
    match error:
        case TransientError():
            return Refusal(
                500, "INTERNAL_ERROR", "the table can't be read at the moment",
                error.retry_after_s or 1.0,
            )  # fmt: skip
        case UnsupportedTable():
            return unsupported_operation(error.what)
        case DataLoss():
            return invalid_parameter(f"{error.what}; ask for a newer version")
        case CorruptLog():
            return Refusal(500, "INTERNAL_ERROR", "the table's log is damaged")
        case TableError():
            return invalid_parameter(error.what)
        case ConfigError():
            return invalid_parameter(str(error))
    return Refusal(500, "INTERNAL_ERROR", "the server made a mistake")
