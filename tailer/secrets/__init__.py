"""Secrets that this process knows, so that nothing that it says shows them.

Other people's words end up in errors and log lines: a server may repeat a request's headers, and a
library the URL that it was given. So every secret is made known here when it is read, and
:func:`hide_secrets` takes it out of a text on its way out, in whatever form it is written there.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Iterable, Iterator
from threading import Lock
from urllib.parse import quote, quote_plus

#: A shorter text is no secret, and would be taken out of words that have it in them.
_LEAST = 6
_SHOWN = "***"
_lock = Lock()
#: The forms of all secrets, the longest first: one may be a part of another.
_forms: list[str] = []


def keep_secrets(texts: Iterable[str]) -> None:
    """Make secrets known."""
    _add_forms(form for text in texts for form in _list_forms(text))


def keep_pair(user: str, password: str) -> None:
    """Make a password known, also as HTTP's basic authentication sends it with its user. The user's
    own name is no secret, even where it is the password too."""
    pair = b64encode(f"{user}:{password}".encode(errors="surrogateescape")).decode()
    _add_forms([*(_list_forms(password) if password != user else ()), pair])


def forget_secrets(texts: Iterable[str]) -> None:
    """Forget secrets that are no longer used, such as a token that has expired."""
    gone = {form for text in texts for form in _list_forms(text)}
    with _lock:
        _forms[:] = [form for form in _forms if form not in gone]


def hide_secrets(text: str) -> str:
    """Return a text without the secrets that are known."""
    for form in tuple(_forms):
        if form in text:
            text = text.replace(form, _SHOWN)
    return text


def _add_forms(forms: Iterable[str]) -> None:
    new = {form for form in forms if len(form) >= _LEAST}
    with _lock:
        if not new.issubset(_forms):
            _forms[:] = sorted({*_forms, *new}, key=lambda form: (-len(form), form))


def _list_forms(text: str) -> Iterator[str]:
    """Yield a secret as it is written in URLs, in JSON, and by Python's ``repr``."""
    yield text
    yield quote(text, safe="", errors="surrogateescape")
    yield quote(text, errors="surrogateescape")
    yield quote_plus(text, errors="surrogateescape")
    yield json.dumps(text)[1:-1]
    yield json.dumps(text, ensure_ascii=False)[1:-1]
    yield repr(text)[1:-1]
