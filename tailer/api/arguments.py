"""Addresses, and the options of their stores, as callers give them: also those of deltalake."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike, fspath
from typing import Any

from tailer.errors import ConfigError
from tailer.storage import is_local, storage_of

#: What deltalake needs and a reader here does not, without the prefix of the cloud.
_NOT_NEEDED = frozenset(
    {
        "allow_http", "conditional_put", "connect_timeout", "copy_if_not_exists", "max_retries",
        "pool_idle_timeout", "pool_max_idle_per_host", "retry_timeout", "s3_allow_unsafe_rename",
        "s3_locking_provider", "timeout", "user_agent",
    }
)  # fmt: skip
_CLOUDS = ("aws_", "azure_", "google_")
_FALSE = ("false", "0", "no")


def check_address(name: str, address: Any) -> str:
    """Return a path or an address as text. Raises :class:`ConfigError`."""
    text = fspath(address) if isinstance(address, PathLike) else address
    if not isinstance(text, str) or not text:
        raise ConfigError(f"the {name} is {address!r}, and must be a path or an address")
    return text


def open_options(address: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of an address's store under our names. Raises :class:`ConfigError` for an
    address without a store, and for options that have no meaning here."""
    if is_local(address):  # one set of options serves tables in the cloud too
        return {name: v for name, v in given.items() if not name.lower().startswith(_CLOUDS)}
    return storage_of(address).rename_options(given)


def reader_options(given: Any) -> dict[str, Any]:
    """Return the options of a store: what only deltalake needs is left out, and the style of
    addresses is said in our word. Raises :class:`ConfigError` for what are no options."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise ConfigError("storage_options must be a mapping of names to values")
    options: dict[str, Any] = {}
    for name, value in given.items():
        plain = name.lower()
        for cloud in _CLOUDS:
            plain = plain.removeprefix(cloud)
        if plain == "virtual_hosted_style_request":
            options["path_style"] = str(value).lower() in _FALSE
        elif value is not None and plain not in _NOT_NEEDED:
            options[name] = value
    return options
