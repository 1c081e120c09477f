"""The user and the password of a sink: in its URL, or as options beside it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tailer.errors import ConfigError
from tailer.secrets import keep_pair
from tailer.settings import Setting

CREDENTIALS: dict[str, Setting] = {
    "user": Setting("text", "", "User name, if the URL contains none."),
    "password": Setting(
        "text", "", "Password, if the URL contains none; it needs no encoding.", secret=True,
    ),
}  # fmt: skip


def find_credentials(
    kind: str, option: str, options: Mapping[str, Any], user: str | None, password: str | None
) -> tuple[str | None, str | None]:
    """Return user and password: those that the URL in ``option`` has, or those of the options of
    their own. Raises :class:`ConfigError` for one that is in both."""
    found = {"user": user, "password": password}
    for name, value in found.items():
        if options[name] and value:
            raise ConfigError(
                f"option {name!r} of sink {kind!r} is also in {option!r}; leave one out"
            )
        found[name] = options[name] or value
    user, password = found["user"], found["password"]
    if password:
        keep_pair(user or "", password)
    return user, password
