"""Servers that no connection reaches: libraries say so in a dozen ways, and never what to do."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

from tailer.errors import TransientError

_REFUSED = re.compile("Connection refused|ECONNREFUSED")
#: As glibc, macOS, librdkafka, musl and c-ares say it; some libraries pass on nothing else.
_UNKNOWN_NAME = re.compile(
    "Name or service not known|No address associated|nodename nor servname|DNS Resolution failure|"
    "Name does not resolve|Name has no usable address|Domain name not found"
)


def explain_unreached(where: str, e: BaseException, check: str) -> TransientError | None:
    """Return the error of a server at which nothing listens, or whose name nobody knows; None if
    ``e`` is of another kind. ``check`` is where its address stands, such as "the option 'url'"."""
    named = next(
        (each for each in _list_causes(e) if isinstance(getattr(each, "host", None), str)), None
    )
    there = f"at {named.host}:{named.port}" if named else "there"  # type: ignore[attr-defined]
    for cause in _list_causes(e):
        if isinstance(cause, ConnectionRefusedError) or _REFUSED.search(str(cause)):
            return TransientError(
                f"{where}: nothing listens {there}; check {check}, and that the server runs"
            )
        unknown = isinstance(cause, socket.gaierror) and cause.errno != socket.EAI_AGAIN
        if unknown or _UNKNOWN_NAME.search(str(cause)):
            return TransientError(
                f"{where}: this machine's DNS does not know the name; check {check}"
            )
    return None


def _list_causes(e: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that it wraps: as its cause, or as aiohttp does."""
    while e is not None:
        yield e
        wrapped = getattr(e, "os_error", None)
        e = wrapped if isinstance(wrapped, BaseException) else e.__cause__ or e.__context__
