"""Options that several sinks have."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from msgspec import structs

from tailer.errors import ConfigError
from tailer.secrets import keep_pair
from tailer.secrets.urls import Url
from tailer.settings import OWN_PREFIX_SETTING, Setting

CREDENTIALS: dict[str, Setting] = {
    "user": Setting("text", "", "User name, if the URL contains none."),
    "password": Setting(
        "text", "", "Password, if the URL contains none; it needs no encoding.", secret=True,
    ),
}  # fmt: skip


def make_table_settings(modes: Sequence[str]) -> dict[str, Setting]:
    """Return the options of a sink that keeps a copy of a table, or its log, in one of these
    modes."""
    return {
        "mode": Setting(
            "text", "mirror", "Keep a copy of the table, or one of all its versions, or a log of "
            "its change events." if "history" in modes else "Keep a copy of the table, or a log "
            "of its change events.", choices=tuple(modes),
        ),
        "key": Setting(
            "texts", [], "Not of a log: the columns that identify a row; without them, row ids do.",
        ),
        "own_prefix": OWN_PREFIX_SETTING,
    }  # fmt: skip


@contextmanager
def naming_extra(kind: str, package: str) -> Iterator[None]:
    """Import, within, what a sink needs. Raises :class:`ConfigError` that names the extra of what
    is not installed."""
    try:
        yield
    except ImportError as e:
        raise ConfigError(
            f"the sink {kind!r} needs {package} ({e}): pip install 'delta-tailer[{kind}]'"
        ) from None


def make_timeout(seconds: float) -> Setting:
    """Return the option ``timeout_s`` with this default."""
    return Setting(
        "number", seconds, "How long to wait for an answer.", unit="seconds", advanced=True
    )


def find_url(kind: str, options: Mapping[str, Any]) -> Url:
    """Return the option ``url`` with its user and password, or those of the options of their own.
    Raises :class:`ConfigError` for one that is in both."""
    url: Url = options["url"]
    user, password = find_credentials(kind, "url", options, url.user, url.password)
    return structs.replace(url, user=user, password=password)


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
