"""Tables by pattern: ``/lake/*/`` stands for every table in a folder of that folder.

``*`` stands for one folder's name, or for a part of one. A folder is a table if it has a
``_delta_log``. In a catalog, ``uc://main.sales.*`` stands for the tables of a schema. The text that
the stars match, joined by ``/``, names the feed: ``NAME/<match>``.

The maker of a folder chooses that text, and it goes into the sink's paths, topics and tables. What
would lead elsewhere there, such as ``..``, is refused by name; so are two folders with one name.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from tailer.errors import TableError
from tailer.storage import is_url, storage_of
from tailer.store import LOG_DIR
from tailer.store.addresses import check_address

#: The names of the folders in a folder.
Folders = Callable[[str], Awaitable[list[str]]]
#: Control characters, lone surrogates (a name that is not UTF-8), ends of lines and paragraphs.
_UNCLEAN = frozenset({"Cc", "Cs", "Zl", "Zp"})
#: What file systems make for themselves, for root alone.
_NEVER_A_TABLE = "/lost+found/"


@dataclass(frozen=True, slots=True)
class Discovered:
    """What a pattern finds.

    ``tables`` are addresses by the text that the stars match. Refused are ``unclean``, texts that
    can't be used by address; ``shared``, the addresses of several tables by their one text; and
    ``closed``, folders that this user may not list, and so perhaps tables.
    """

    tables: dict[str, str]
    unclean: dict[str, str]
    shared: dict[str, list[str]]
    closed: list[str]


def is_pattern(table: str) -> bool:
    """Return whether a table's address stands for several tables."""
    return "*" in table


async def discover_tables(pattern: str, options: Mapping[str, Any]) -> Discovered:
    """Return the tables that a pattern finds.

    Raises :class:`ConfigError` for an address whose store can't list folders,
    :class:`TransientError` if the store does not answer, and :class:`TableError` if the folders in
    front of the first star can't be listed.
    """
    check_address(pattern)
    scheme, separator, rest = pattern.rpartition("://")
    root = scheme + separator + ("/" if rest.startswith("/") else "")
    parts = [part for part in rest.split("/") if part]
    storage = storage_of(pattern)

    async def folders(address: str) -> list[str]:
        return await storage.list_folders(address, options)

    closed: list[str] = []
    listed = await storage.find_tables(pattern, options)
    found = {} if listed is None else dict(listed)
    if listed is None:
        await _walk_folders(root, parts, (), folders, found, closed)
    clean = {text: found[text] for text in sorted(found) if _is_clean(text)}
    return Discovered(
        {text: places[0] for text, places in clean.items() if len(places) == 1},
        {place: text for text in found.keys() - clean.keys() for place in found[text]},
        {text: sorted(places) for text, places in clean.items() if len(places) > 1},
        sorted(closed),
    )


def _is_clean(text: str) -> bool:
    """Return whether a match may stand in a path, a topic or a table's name."""
    return not any(part in ("", ".", "..") for part in text.split("/")) and not any(
        unicodedata.category(character) in _UNCLEAN for character in text
    )


async def _walk_folders(
    at: str,
    parts: list[str],
    matched: tuple[str, ...],
    folders: Folders,
    found: dict[str, list[str]],
    closed: list[str],
) -> None:
    while parts and "*" not in parts[0]:
        at, parts = f"{at}{parts[0]}/", parts[1:]
    try:
        names = await folders(at)
    except OSError as e:
        if not matched:
            raise TableError(f"{at} can't be searched for tables ({e.strerror or e})") from None
        if not at.endswith(_NEVER_A_TABLE):
            closed.append(at.removesuffix("/"))
        return
    if not parts:
        if LOG_DIR in names:
            found.setdefault("/".join(matched), []).append(at.removesuffix("/"))
        return
    texts = [re.escape(text) for text in parts[0].split("*")]
    pattern = re.compile("([^/]*)".join(texts))
    for name in names:
        match = pattern.fullmatch(name)
        if match and name != LOG_DIR and not name.startswith("."):
            stars = "-".join(match.groups())
            step = quote(name) if is_url(at) else name
            await _walk_folders(
                f"{at}{step}/", parts[1:], (*matched, stars), folders, found, closed
            )
