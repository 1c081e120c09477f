"""``CONFIG.toml`` of ``tailer share``: read, checked, and converted to values.

Every error is one line that names the file, the key and what is allowed. ``${NAME}`` in a string is
the environment variable NAME, so that secrets stay out of the file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlsplit

from tailer.config.settings import TABLE_OF_OPTIONS, Section, make_address_parser, read_document
from tailer.secrets.urls import UrlError, parse_url
from tailer.settings import REQUIRED, Setting
from tailer.share_server.grants import Catalog, Grants, TableConfig

#: S3 accepts no signature that is valid for longer.
_URL_TTL_S_MAX = 7 * 86_400
#: Seconds' worth of requests that a recipient may send at once.
_BURST_S = 4
#: An HMAC key shorter than half of the hash would be the weakest part of a URL.
_KEY_BYTES_MIN = 16


@dataclass(frozen=True, slots=True)
class RecipientLimits:
    """Limits on what one recipient may request.

    ``requests_per_s`` on average, four times as many at once, ``concurrent`` under way, and in
    addition ``downloads`` of files. A client that takes no byte, or is without a whole request, for
    ``stall_s`` seconds is disconnected. ``page_size`` limits a page of a list. ``connections``
    counts all clients.
    """

    requests_per_s: float = 50.0
    concurrent: int = 32
    downloads: int = 256
    stall_s: float = 60.0
    page_size: int = 500
    connections: int = 500

    @property
    def burst(self) -> int:
        """Return how many requests may come at once."""
        return max(1, round(_BURST_S * self.requests_per_s))


_USUAL = RecipientLimits()

SHARE: dict[str, Setting] = {
    "address": Setting(
        "text", "127.0.0.1:8080", "Address to listen on.", form="host:port",
        parse=make_address_parser(),
    ),
    "public_url": Setting(
        "text", "", "URL at which clients reach the server; its path is the API "
        "prefix.", form="http(s)://host[/prefix]", unset="made from `address`",
    ),
    "tls_cert": Setting(
        "text", "", "PEM file of the certificate; together with `tls_key` it enables TLS 1.2 and "
        "newer.",
    ),
    "tls_key": Setting("text", "", "PEM file of the private key."),
    "url_ttl_s": Setting(
        "whole", 3600, "How long file URLs remain valid; at most one week.", unit="seconds",
        advanced=True,
    ),
    "signing_key": Setting(
        "text", "", "Key that signs URLs and page tokens, at least 16 bytes. Servers behind one "
        "`public_url` need the same key.", secret=True, unset="made and kept in `state`",
        advanced=True,
    ),
    "state": Setting("text", "share-state", "Folder for tokens and the signing key."),
    "audit": Setting(
        "text", "", "Audit log, in JSON lines. If the disk is full, entries go to the server's "
        "log.", unset="`audit.jsonl` in `state`", advanced=True,
    ),
    "requests_per_s": Setting(
        "number", _USUAL.requests_per_s, "Average request rate per recipient, of which four "
        "seconds' worth may come at once; requests beyond it get status 429 with `Retry-After`.",
        unit="requests per second", advanced=True,
    ),
    "stall_s": Setting(
        "number", _USUAL.stall_s, "Disconnect a client that neither reads a byte nor completes a "
        "request for this long.", unit="seconds", advanced=True,
    ),
}  # fmt: skip
TABLE: dict[str, Setting] = {
    "location": Setting(
        "text", REQUIRED, "Location of the table.", form="a path, s3://bucket/key, az:// or gs://",
        elsewhere=("table", "path"),
    ),
    "history": Setting("flag", False, "Whether recipients may read old versions."),
    "cdf": Setting("flag", False, "Whether recipients may read the change data feed."),
    "also": Setting(
        "texts", [], "Further folders that may contain its files, as for a shallow clone. No other "
        "file outside the table is shared.", advanced=True,
    ),
    "proxy": Setting(
        "flag", False, "Serve S3 files through this server instead of giving recipients pre-signed "
        "S3 URLs.", advanced=True,
    ),
    "store": Setting("table", {}, "Options of the table's store, such as `endpoint_url`.",
        advanced=True),
}  # fmt: skip
_TABLES = {"tables": TABLE_OF_OPTIONS}
_SCHEMAS = {"schemas": TABLE_OF_OPTIONS}
_RECIPIENT = {"grants": Setting("texts", [], "")}
_TOP = dict.fromkeys(("share", "shares", "recipients"), TABLE_OF_OPTIONS)
_OF_THE_DAEMON = ("feeds", "daemon", "store", "catalogs")


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """A whole configuration. ``address`` is (host, port); ``tls`` (certificate, key) or None.

    ``public_url`` is the server's URL for clients, with its prefix and without a slash at the end.
    ``url_ttl_s`` is how long the URL of a file is valid, in seconds.
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
    limits: RecipientLimits
    key: bytes | None = field(repr=False)

    def with_port(self, port: int) -> ShareConfig:
        """Return the configuration with the port that the system has chosen for port 0."""
        host, wanted = self.address
        if wanted:
            return self
        url = self.public_url
        if self.leads_nowhere:
            url = f"{url.removesuffix(':0')}:{port}"
        return replace(self, address=(host, port), public_url=url)

    @property
    def leads_nowhere(self) -> bool:
        """Whether the public URL is only known once the server runs."""
        return urlsplit(self.public_url).port == 0

    @property
    def prefix(self) -> str:
        """The path of the public URL: ``{prefix}`` of the protocol's text; may be empty."""
        return urlsplit(self.public_url).path.rstrip("/")


def load_share_config(path: Path, environment: Mapping[str, str] = os.environ) -> ShareConfig:
    """Load the configuration in a file. Raises :class:`ConfigError` for the first error in it."""
    # A file may configure feeds as well: `tailer run` reads those, and this function ignores them.
    top = Section(path, "", read_document(path, environment, _OF_THE_DAEMON), _TOP)
    share = Section(path, "share", top["share"], SHARE)
    host, port = share["address"]
    state = path.parent / share["state"]
    tls = _find_tls_files(share, path.parent)
    scheme = "https" if tls else "http"
    shown_host = f"[{host}]" if ":" in host else host
    public_url = share["public_url"] or f"{scheme}://{shown_host}:{port}"
    try:
        if share["public_url"] or port:
            parse_url(public_url, ("http", "https"), login=False)
    except UrlError:
        shown = f"is {public_url!r}, and must be http(s)://host[/prefix]"
        raise share.make_error("public_url", shown) from None
    catalog = _build_catalog(top, path.parent)
    return ShareConfig(
        path=path,
        address=(host, port),
        public_url=public_url.rstrip("/"),
        tls=tls,
        url_ttl_s=min(share["url_ttl_s"], _URL_TTL_S_MAX),
        state=state,
        audit=path.parent / (share["audit"] or state.absolute() / "audit.jsonl"),
        catalog=catalog,
        grants=_build_grants(top, catalog),
        limits=RecipientLimits(requests_per_s=share["requests_per_s"], stall_s=share["stall_s"]),
        key=_find_signing_key(share),
    )


def _find_tls_files(share: Section, folder: Path) -> tuple[Path, Path] | None:
    certificate, key = share["tls_cert"], share["tls_key"]
    if bool(certificate) != bool(key):
        raise share.make_error("tls_cert", "and tls_key go together")
    return (folder / certificate, folder / key) if certificate else None


def _find_signing_key(share: Section) -> bytes | None:
    """Return the key that signs URLs and page tokens; None: it is made and kept in `state`."""
    key: bytes = share["signing_key"].encode()
    if key and len(key) < _KEY_BYTES_MIN:
        raise share.make_error("signing_key", f"has fewer than {_KEY_BYTES_MIN} bytes")
    return key or None


def _build_catalog(top: Section, folder: Path) -> Catalog:
    catalog = Catalog()
    shares = top.list_sections("shares", _SCHEMAS)
    if not shares:
        raise top.make_error(
            "shares", "is empty; describe a table as [shares.NAME.schemas.SCHEMA.tables.TABLE]"
        )
    for share_name, share in shares.items():
        catalog.add_share(share_name, share.make_error)
        for schema_name, schema in share.list_sections("schemas", _TABLES).items():
            catalog.add_schema(share_name, schema_name, schema.make_error)
            for name, table in schema.list_sections("tables", TABLE).items():
                catalog.add_table(
                    TableConfig(
                        share=share_name,
                        schema=schema_name,
                        name=name,
                        location=_resolve_location(table["location"], folder),
                        history=table["history"],
                        cdf=table["cdf"],
                        also=tuple(_resolve_location(also, folder) for also in table["also"]),
                        proxy=table["proxy"],
                        store=table["store"],
                    ),
                    table.make_error,
                )
    return catalog


def _resolve_location(text: str, folder: Path) -> str:
    local = "://" not in text and not text.startswith(("file:", "~"))
    return str((folder / text).absolute()) if local else text


def _build_grants(top: Section, catalog: Catalog) -> Grants:
    grants = Grants(catalog)
    for name, recipient in top.list_sections("recipients", _RECIPIENT).items():
        grants.add_recipient(name)
        for grant in recipient["grants"]:
            if not grants.add_grant(name, grant):
                raise recipient.make_error(
                    "grants",
                    f"names {grant!r}, which is no share, schema or table of this file",
                )
    return grants
