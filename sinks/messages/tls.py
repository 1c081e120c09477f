"""Whom a sink's connection trusts."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailer.errors import ConfigError
from tailer.settings import Setting

CA_FILE = Setting(
    "text", "", "PEM file of the trusted authorities.", unset="the system's authorities",
    advanced=True,
)  # fmt: skip


def find_ca_file(options: Mapping[str, Any], folder: Path) -> Path | None:
    """Return the file of the option ``ca_file``, which is relative to ``folder``; None without."""
    return folder / options["ca_file"] if options["ca_file"] else None


def make_tls_context(kind: str, ca_file: Path | None) -> ssl.SSLContext | None:
    """Return a context that trusts the authorities in the file of a sink's option `ca_file`; None
    if there is none. Raises :class:`ConfigError` for a file that can't be used."""
    if ca_file is None:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as e:
        raise ConfigError(
            f"option 'ca_file' of sink {kind!r}: {ca_file} can't be used ({e.strerror})"
        ) from e


def is_distrusted(e: BaseException | None) -> bool:
    """Return whether a connection came to nothing because the server's certificate does not hold:
    nobody vouches for it, or it is another one's. Libraries wrap that error several times."""
    while e is not None:
        if isinstance(e, ssl.SSLCertVerificationError) or "CERTIFICATE_VERIFY_FAILED" in str(e):
            return True
        e = e.__cause__ or e.__context__
    return False
