"""Pages of lists.

Opaque signed tokens name the last item, so that a list may grow between two pages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tailer.share_server.refusals import invalid_parameter
from tailer.share_server.signing import Forged, Signer
from tailer.sharing.model import Page

_INT32_MAX = 2**31 - 1

Path = tuple[str, ...]


def parse_max_results(text: str | None, largest: int) -> int:
    """Return the page size that a request asks for, at most ``largest``; 0 is allowed.

    Raises a :class:`Refusal` unless it is a non-negative Int32.
    """
    if text is None:
        return largest
    if not (text.isascii() and text.isdigit()) or len(text) > 10 or int(text) > _INT32_MAX:
        raise invalid_parameter("maxResults must be a number of 0 or more")
    return min(int(text), largest)


class Pager:
    """Cuts lists into pages. A token is bound to its list and its recipient."""

    def __init__(self, signer: Signer) -> None:
        self._signer = signer

    def make_page(
        self,
        scope: Sequence[str],
        size: int,
        token: str | None,
        after: Callable[[Path], Sequence[Path]],
        item: Callable[[Path], dict[str, Any]],
    ) -> Page:
        """Return one page.

        ``scope`` names the list and the recipient; ``after`` gives the paths after a path (the
        empty path: all), and ``item`` the item for a path. Raises a :class:`Refusal` for a token
        that does not belong to this list.
        """
        last: Path = ()
        if token:
            try:
                value = self._signer.open_token("page", token)
            except Forged:
                raise invalid_parameter("the pageToken was not issued by this server") from None
            if value["of"] != list(scope):
                raise invalid_parameter("the pageToken belongs to another list")
            last = tuple(value["last"])
        paths = after(last)
        shown = paths[:size]
        following = None
        if len(paths) > size:
            place = list(shown[-1]) if shown else list(last)
            following = self._signer.make_token("page", {"of": list(scope), "last": place})
        return Page(tuple(item(path) for path in shown), following)
