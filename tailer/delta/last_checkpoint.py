"""``_last_checkpoint``: where a listing of the log may begin, if its checksum is right.

"Last Checkpoint File", "Last Checkpoint File Schema" and "JSON checksum". It is a hint: a reader
that finds it invalid lists the whole log instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from msgspec import Struct

from tailer.delta.actions import LONG_MAX
from tailer.delta.checksum import refuse_duplicates
from tailer.errors import CorruptLog


class LastCheckpoint(Struct, frozen=True):
    """The version of the newest checkpoint, as its writer knew it.

    ``parts`` is set if it has several, ``num_files`` if its writer counted the files in its list.
    """

    version: int
    parts: int | None = None
    num_files: int | None = None


class _Number(str):
    """A number as it is written: canonical JSON keeps its form."""

    __slots__ = ()

    def to_integer(self) -> int | None:
        """Return its value, if it can be a version or a count."""
        value = int(self) if len(self) <= len(str(LONG_MAX)) and self.isdigit() else None
        return value if value is None or value <= LONG_MAX else None


@lru_cache(maxsize=4)  # it is read again and again; to check its sum takes milliseconds
def parse_last_checkpoint(data: bytes) -> LastCheckpoint:
    """Parse the content of ``_last_checkpoint``.

    Raises :class:`CorruptLog` if it is not a JSON object, names a key twice, lacks its version or
    does not fit its checksum. Without a checksum it is accepted: writers may leave it out.
    """
    try:
        document = _parse_json(data)
        if not isinstance(document, dict):
            raise CorruptLog("_last_checkpoint is not a JSON object")
        checksum = document.get("checksum")
        if checksum is not None and checksum != _hash_md5(canonical_json(document).encode()):
            raise CorruptLog("_last_checkpoint does not fit its checksum (MD5)")
    except (ValueError, RecursionError) as e:
        raise CorruptLog(f"_last_checkpoint can't be read ({e})") from None
    names = ("version", "parts", "numOfAddFiles")
    version, parts, files = (_to_integer(document.get(name)) for name in names)
    if version is None:
        raise CorruptLog("_last_checkpoint has no version")
    return LastCheckpoint(version, parts, files)


def _hash_md5(data: bytes) -> str:
    try:
        from _md5 import md5  # type: ignore[import-not-found]  # the interpreter's own
    except ImportError:
        from hashlib import md5  # it loads OpenSSL, which takes 4 MiB and some milliseconds
    digest: str = md5(data, usedforsecurity=False).hexdigest()
    return digest


def canonical_json(document: Any) -> str:
    """Return the canonical form of a document, without its top-level ``checksum``.

    Its numbers are ints, floats or as the parser above leaves them. Raises UnicodeEncodeError (a
    ValueError) for a string with half a surrogate pair.
    """
    if isinstance(document, dict):
        document = {name: value for name, value in document.items() if name != "checksum"}
    # All names and values are pure ASCII here, so characters sort as bytes do.
    leaves = sorted(_list_leaves("", document))
    return ",".join(f"{path}={value}" for path, value in leaves)


def _list_leaves(path: str, value: Any) -> Iterator[tuple[str, str]]:
    """Yield (canonical path, canonical value) of all scalars in a value."""
    named: list[tuple[str, Any]]
    if isinstance(value, dict):
        named = [(_quote_text(name), child) for name, child in value.items()]
    elif isinstance(value, list):
        named = [(str(index), child) for index, child in enumerate(value)]
    else:
        spelled = value if isinstance(value, _Number) else None
        yield path, spelled or (_quote_text(value) if isinstance(value, str) else json.dumps(value))
        return
    for name, child in named:
        yield from _list_leaves(f"{path}+{name}" if path else name, child)


def _quote_text(text: str) -> str:
    # Nearly all names and values are such; a schema in the hint has thousands of them.
    return f'"{text if re.fullmatch(r"[A-Za-z0-9_.~-]*", text) else quote(text, safe="")}"'


def _parse_json(data: bytes) -> Any:
    return json.loads(
        data,
        object_pairs_hook=refuse_duplicates,
        parse_int=_Number,
        parse_float=_Number,
        parse_constant=_refuse_constant,
    )


def _refuse_constant(text: str) -> Any:
    raise ValueError(f"{text} is not JSON")


def _to_integer(value: Any) -> int | None:
    return value.to_integer() if isinstance(value, _Number) else None
