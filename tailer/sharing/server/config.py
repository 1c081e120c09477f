"""``CONFIG.toml`` of ``tailer share``: read, checked, and turned into values.

Every mistake is one line that names the file, the key and what is allowed. ``${NAME}`` in a string
is the environment variable NAME, so that secrets stay out of the file.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tailer.errors import ConfigError
from tailer.settings import with_variables
from tailer.sharing.server.grants import Catalog, Grants, TableConfig

__all__ = ["Limits", "ShareConfig", "load_share_config"]

T = TypeVar("T")

#: S3 takes no signature that is good for longer.
_URL_TTL_S_MAX = 7 * 86_400
#: An HMAC key shorter than the hash's half would be the weakest part of a URL.
_KEY_BYTES_MIN = 16


@dataclass(frozen=True, slots=True)
class Limits:
    """What one recipient may ask of the server.

    ``requests_per_s`` on average, ``burst`` at once, ``concurrent`` under way. A client that takes
    no byte for ``stall_s`` seconds is cut off. ``page_size`` bounds a page of a list.
    """

    requests_per_s: float = 50.0
    burst: int = 200
    concurrent: int = 32
    stall_s: float = 60.0
    page_size: int = 500


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """A whole configuration. ``address`` is (host, port); ``tls`` (certificate, key) or None.

    ``public_url`` is what clients know the server by, with its prefix and without a slash at the
    end. ``url_ttl_s`` is how long the URL of a file is good for, in seconds.
    """

    path: Path
    address: tuple[str, int]
    public_url: str
    tls: tuple[Path, Path] | None
    url_ttl_s: int
    state: Path
    audit: Path
    catalog: Catalog
    grants: Grants
    limits: Limits
    key: bytes | None = field(repr=False)

    @property
    def prefix(self) -> str:
        """The path of the public URL: ``{prefix}`` of the protocol's text; may be empty."""
        return urlsplit(self.public_url).path.rstrip("/")


class _Section:
    """One table of the file; every key must be asked for, or it is unknown."""

    def __init__(self, file: Path, name: str, values: Any) -> None:
        self.file, self.name = file, name
        if not isinstance(values, dict):
            raise ConfigError(f"{file}: {name} must be a table")
        self.values: dict[str, Any] = values
        self.asked: set[str] = set()

    def wrong(self, key: str, what: str) -> ConfigError:
        return ConfigError(f"{self.file}: {'.'.join(filter(None, (self.name, key)))} {what}")

    def take(self, key: str, kind: type[T], default: T | None = None) -> T:
        self.asked.add(key)
        value = self.values.get(key)
        if value is None:
            if default is None:
                raise self.wrong(key, "is missing")
            return default
        if kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise self.wrong(key, f"is {value!r}, and must be a {kind.__name__}")
        return value

    def positive(self, key: str, kind: type[T], default: T) -> T:
        value = self.take(key, kind, default)
        if not isinstance(value, int | float) or value <= 0:
            raise self.wrong(key, f"is {value!r}, and must be greater than 0")
        return value

    def strings(self, key: str) -> tuple[str, ...]:
        value: list[Any] = self.take(key, list, [])
        if not all(isinstance(item, str) for item in value):
            raise self.wrong(key, f"is {value!r}, and must be a list of strings")
        return tuple(value)

    def sections(self, key: str) -> dict[str, _Section]:
        """The tables below a key, by name."""
        found: dict[str, Any] = self.take(key, dict, {})
        place = f"{self.name}.{key}" if self.name else key
        return {n: _Section(self.file, f"{place}.{n}", v) for n, v in found.items()}

    def finish(self) -> None:
        for key in self.values:
            if key not in self.asked:
                raise self.wrong(key, f"is not known; known are {', '.join(sorted(self.asked))}")


def load_share_config(path: Path, environment: Mapping[str, str] = os.environ) -> ShareConfig:
    """The configuration in a file. Raises :class:`ConfigError` for the first mistake in it."""
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise ConfigError(f"{path} can't be read ({e.strerror})") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise ConfigError(f"{path} is not TOML: {e}") from e
    top = _Section(path, "", with_variables(document, path, environment, ("feeds",)))
    share = _Section(path, "share", top.take("share", dict, {}))
    address = _address(share, share.take("address", str, "127.0.0.1:8080"))
    state = path.parent / share.take("state", str, "share-state")
    tls = _tls(share, path.parent)
    scheme = "https" if tls else "http"
    public_url = share.take("public_url", str, f"{scheme}://{address[0]}:{address[1]}")
    if urlsplit(public_url).scheme not in ("http", "https") or not urlsplit(public_url).hostname:
        raise share.wrong("public_url", f"is {public_url!r}, and must be http(s)://host[/prefix]")
    catalog = _catalog(top, path.parent)
    config = ShareConfig(
        path=path,
        address=address,
        public_url=public_url.rstrip("/"),
        tls=tls,
        url_ttl_s=min(share.positive("url_ttl_s", int, 3600), _URL_TTL_S_MAX),
        state=state,
        audit=path.parent / share.take("audit", str, str(state.absolute() / "audit.jsonl")),
        catalog=catalog,
        grants=_grants(top, catalog),
        limits=_limits(share),
        key=_key(share, path.parent),
    )
    share.finish()
    # A file may hold feeds as well: `tailer run` reads those, and we leave them alone.
    top.asked |= {"feeds", "daemon", "store"}
    top.finish()
    return config


def _address(share: _Section, text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) > 65_535:
        raise share.wrong("address", f"is {text!r}, and must be host:port")
    return host.strip("[]"), int(port)


def _tls(share: _Section, folder: Path) -> tuple[Path, Path] | None:
    certificate, key = share.take("tls_cert", str, ""), share.take("tls_key", str, "")
    if bool(certificate) != bool(key):
        raise share.wrong("tls_cert", "and tls_key go together")
    return (folder / certificate, folder / key) if certificate else None


def _key(share: _Section, folder: Path) -> bytes | None:
    """The key that signs URLs and page tokens; None: one is made and kept in the state folder."""
    text, file = share.take("signing_key", str, ""), share.take("signing_key_file", str, "")
    if text and file:
        raise share.wrong("signing_key", "and signing_key_file exclude each other")
    if file:
        try:
            text = (folder / file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as e:
            raise share.wrong("signing_key_file", f"can't be read ({e})") from None
    if not text and not file:
        return None
    if len(text.encode()) < _KEY_BYTES_MIN:
        raise share.wrong("signing_key", f"has fewer than {_KEY_BYTES_MIN} bytes")
    return text.encode()


def _limits(share: _Section) -> Limits:
    usual = Limits()
    return Limits(
        requests_per_s=share.positive("requests_per_s", float, usual.requests_per_s),
        burst=share.positive("burst", int, usual.burst),
        concurrent=share.positive("concurrent", int, usual.concurrent),
        stall_s=share.positive("stall_s", float, usual.stall_s),
        page_size=share.positive("page_size", int, usual.page_size),
    )


def _catalog(top: _Section, folder: Path) -> Catalog:
    catalog = Catalog()
    shares = top.sections("shares")
    if not shares:
        raise top.wrong(
            "shares", "is empty; describe a table as [shares.NAME.schemas.SCHEMA.tables.TABLE]"
        )
    for share_name, share in shares.items():
        catalog.add_share(share_name, share.wrong)
        for schema_name, schema in share.sections("schemas").items():
            catalog.add_schema(share_name, schema_name, schema.wrong)
            for table_name, table in schema.sections("tables").items():
                catalog.add_table(
                    TableConfig(
                        share=share_name,
                        schema=schema_name,
                        name=table_name,
                        location=_location(table.take("location", str), folder),
                        history=table.take("history", bool, default=False),
                        cdf=table.take("cdf", bool, default=False),
                        also=tuple(_location(also, folder) for also in table.strings("also")),
                        proxy=table.take("proxy", bool, default=False),
                        store=table.take("store", dict, {}),
                    ),
                    table.wrong,
                )
                table.finish()
            schema.finish()
        share.finish()
    return catalog


def _location(text: str, folder: Path) -> str:
    local = "://" not in text and not text.startswith(("file:", "~"))
    return str((folder / text).absolute()) if local else text


def _grants(top: _Section, catalog: Catalog) -> Grants:
    grants = Grants(catalog)
    for name, recipient in top.sections("recipients").items():
        for grant in recipient.strings("grants"):
            if not grants.add(name, grant):
                raise recipient.wrong("grants", f"names {grant!r}, which is no share, schema or "
                                      "table of this file")  # fmt: skip
        grants.known(name)
        recipient.finish()
    return grants
