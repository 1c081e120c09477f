"""Paths of the log: URI-encoded, relative to the table or absolute ("Add File and Remove File").

The names of partition folders have no meaning. A path that climbs out of the table by ``..`` is
refused: no writer makes one, and following it would read files that are not part of the table.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from urllib.parse import unquote

from tailer.delta.actions import DeletionVectorDescriptor
from tailer.errors import CorruptLog

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")


# RFC 32 of ZeroMQ: the base85 alphabet that survives inside JSON strings.
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_Z85_VALUE = {c: i for i, c in enumerate(_Z85)}


def split_scheme(path: str) -> tuple[str, str]:
    """Split an absolute URI into (scheme, rest); ("", path) if there is no scheme.

    ``file:/a``, ``file:///a`` and ``file://localhost/a`` are all ("file", "/a");
    ``s3a://bucket/key`` is ("s3a", "bucket/key").
    """
    match = _SCHEME.match(path)
    if match is None:
        return "", path
    scheme, rest = match[1].lower(), path[match.end() :]
    if scheme == "file":
        if match[2] and not rest.startswith("/"):
            rest = rest[rest.find("/") :] if "/" in rest else "/"
        return scheme, "/" + rest.lstrip("/")
    return scheme, rest


def parse_location(path: str) -> str:
    """Return the location that a path of the log names: decoded, relative to the root or absolute.

    Absolute ones are ``/a/b`` on the local disk and ``s3://bucket/key`` elsewhere (``s3a`` and
    ``s3n`` are the same store). Raises :class:`CorruptLog` for an empty path, a control
    character, an encoding that is not UTF-8, or a path that leaves the table.
    """
    if path and _is_plain(path):
        return path
    scheme, rest = split_scheme(path)
    try:
        decoded = unquote(rest, errors="strict") if "%" in rest else rest
    except UnicodeDecodeError:
        raise CorruptLog("a path in the log is not UTF-8 when decoded", path=path) from None
    if not decoded or "\x00" in decoded:
        raise CorruptLog("a path in the log is empty or has a NUL in it", path=path)
    if scheme in ("", "file"):
        if ".." in decoded.split("/"):
            raise CorruptLog(
                "a path in the log climbs out of the table", path=path, hint="it is not followed"
            )
        return decoded
    if scheme in ("s3a", "s3n"):
        scheme = "s3"
    return f"{scheme}://{decoded}"


def parse_locations(paths: Sequence[str]) -> Sequence[str]:
    """Return the location of each path. Nearly all are their own, and are checked together."""
    text = "\n".join(paths)
    if all(paths) and _is_plain(text):
        return paths
    return [parse_location(path) for path in paths]


def _is_plain(text: str) -> bool:
    """Return whether paths are already locations."""
    return not (":" in text or "%" in text or ".." in text or "\x00" in text)


def z85_decode(text: str) -> bytes:
    """Decode a Z85 string. Raises :class:`CorruptLog` if it is not one.

    The last group may stand for fewer than four bytes, as the z85 crate of Rust writes it: one "#"
    for each missing byte, then the digits of the rest. No other group can begin with "#", because
    such a number has more than 32 bits.
    """
    if len(text) % 5:
        raise CorruptLog(f"a base85 string of {len(text)} characters is cut short")
    out = bytearray()
    for start in range(0, len(text), 5):
        group, size = text[start : start + 5], 4
        if group.startswith("#") and start + 5 == len(text):
            digits = group[:3].lstrip("#") + group[3:]
            group, size = digits, len(digits) - 1
        value = 0
        for char in group:
            digit = _Z85_VALUE.get(char)
            if digit is None:
                raise CorruptLog(f"{char!r} is not a base85 character")
            value = value * 85 + digit
        if value >> (8 * size):
            raise CorruptLog("a base85 group is too large")
        out += value.to_bytes(size, "big")
    return bytes(out)


def find_dv_location(dv: DeletionVectorDescriptor) -> str | None:
    """Return the location of the deletion vector's file; None if it is inline ("Derived Fields").

    Raises :class:`CorruptLog` for a storage type or a name that the protocol does not have.
    """
    match dv.storage_type:
        case "i":
            return None
        case "p":
            return parse_location(dv.path_or_inline_dv)
        case "u":
            encoded = dv.path_or_inline_dv
            if len(encoded) < 20:
                raise CorruptLog(f"the deletion vector's name {encoded!r} is too short")
            prefix, name = encoded[:-20], encoded[-20:]
            decoded = z85_decode(name)
            if len(decoded) != 16:
                raise CorruptLog(f"the deletion vector's name {encoded!r} is not a UUID")
            file = f"deletion_vector_{uuid.UUID(bytes=decoded)}.bin"
            return _check_plain_location(f"{prefix}/{file}" if prefix else file)
    raise CorruptLog(f"deletion vector storage type {dv.storage_type!r} is not known here")


def _check_plain_location(path: str) -> str:
    """Check a relative path that is not URI-encoded, as :func:`parse_location` does."""
    if ".." in path.split("/") or path.startswith("/") or "://" in path or "\x00" in path:
        raise CorruptLog("a deletion vector's name climbs out of the table", path=path)
    return path
