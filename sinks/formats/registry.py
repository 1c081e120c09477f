"""A client of a schema registry that speaks Confluent's REST API. Blocking: for worker threads.

Nothing is retried here. An error that may pass (no answer, a time-out, 5xx, too many requests) is a
:class:`TransientError`, and the feed retries; a permanent one (an incompatible schema, wrong
credentials) is a :class:`SinkRejected` that names the subject. Messages never contain credentials.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote, urlsplit

from tailer.errors import ConfigError, TailerError, TargetRefused, TransientError
from tailer.network.reach import unreached
from tailer.secrets import keep_pair
from tailer.secrets.urls import Url, parse_url
from tailer.settings import REQUIRED, Setting, SettingTable

__all__ = ["REGISTRY", "Registry", "RegistryClient", "load_registry", "located"]

REGISTRY: dict[str, Setting] = {
    "url": Setting(
        "text", REQUIRED, "Address of the registry.", form="http(s)://host[:port]",
        parse=partial(parse_url, schemes=("http", "https"), login=False),
    ),
    "user": Setting("text", "", "User name, with `password`."),
    "password": Setting("text", "", "Password of `user`.", secret=True),
    "token": Setting("text", "", "Bearer token, instead of a user.", secret=True, advanced=True),
    "ca_file": Setting(
        "text", "", "PEM file of the trusted authorities.", unset="the system's authorities",
        advanced=True,
    ),
    "client_cert": Setting("text", "", "PEM file of the client's certificate and key.",
        advanced=True),
    "auto_register": Setting(
        "flag", True, "Register new schemas; otherwise they must be registered already.",
        advanced=True,
    ),
}  # fmt: skip

_REMOVED = {
    "ca_bundle": "it is called ca_file",
    "client_key": "let client_cert have both, the certificate and the key",
    "timeout_s": "leave it out, an answer is awaited for 10 s",
}
_FILES = ("ca_file", "client_cert")
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
#: Of the statuses that are no faults of the registry: of the schema, of the account.
_FOR_GOOD = (400, 401, 403, 404, 405, 406, 409, 413, 415, 422)
_BUSY = (408, 429)
#: An answer has an id, or a sentence or two.
_ANSWER_BYTES_MAX = 1024 * 1024


class Registry(Protocol):
    """A schema registry, as an encoder uses it."""

    def register(self, subject: str, schema: str) -> int:
        """Return the id of an Avro schema (its JSON text) under a subject, registering a new one.

        Raises :class:`SinkRejected` if the registry refuses the schema as incompatible,
        :class:`TransientError` if it does not answer.
        """


@dataclass(frozen=True, slots=True)
class RegistryClient:
    """Registers schemas, or only looks them up if ``auto_register`` is false.

    ``authorization`` is the value of that header, or None; ``tls`` the context of an https URL.
    """

    url: str
    authorization: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    auto_register: bool = True
    timeout_s: int = 10

    def register(self, subject: str, schema: str) -> int:
        """Return the id of a schema under a subject. See
        :class:`tailer.sink.encoder.Registry`."""
        path = f"/subjects/{quote(subject, safe='')}"
        if self.auto_register:
            path += "/versions"
        status, answer = self._post(path, {"schemaType": "AVRO", "schema": schema})
        number = answer.get("id")
        if status == 200 and isinstance(number, int) and not isinstance(number, bool):
            return number
        said = str(answer.get("message") or f"status {status}").splitlines()[0]
        raise self._refusal(subject, status, said)

    def _refusal(self, subject: str, status: int, said: str) -> TailerError:
        where = f"the schema registry at {self.url}"
        if status == 409:
            return TargetRefused(
                f"{where} refuses the schema of subject {subject!r} as incompatible with an "
                f"earlier one ({said}); change the subject's compatibility, or use a new topic"
            )
        if status in (401, 403):
            return TargetRefused(
                f"{where} refuses access to subject {subject!r} ({said}); check its credentials"
            )
        if status == 404 and not self.auto_register:
            return TargetRefused(
                f"{where} does not have this schema under subject {subject!r}, and auto_register "
                "is off; register it first"
            )
        if status not in _FOR_GOOD:
            return TransientError(f"{where} answers with status {status} ({said})")
        return TargetRefused(f"{where} refuses the schema of subject {subject!r} ({said})")

    def _post(self, path: str, body: Mapping[str, Any]) -> tuple[int, dict[str, Any]]:
        """Return status and JSON object of an answer. Raises :class:`TransientError` if there is
        none."""
        parts = urlsplit(self.url)
        headers = {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE}
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        connection = self._connection(parts.hostname or "", parts.port)
        try:
            connection.request("POST", parts.path.rstrip("/") + path, json.dumps(body), headers)
            answer = connection.getresponse()
            data = answer.read(_ANSWER_BYTES_MAX)
        except ssl.SSLCertVerificationError as e:
            raise TargetRefused(
                f"the certificate of the schema registry at {self.url} is not trusted "
                f"({e.verify_message}); set ca_file"
            ) from None
        except (OSError, http.client.HTTPException) as e:
            at = f"the schema registry at {self.url}"
            raise unreached(at, e, "its URL") or TransientError(
                f"{at} does not answer ({str(e) or type(e).__name__})"
            ) from e
        finally:
            connection.close()
        if answer.status >= 500 or answer.status in _BUSY:
            raise TransientError(
                f"the schema registry at {self.url} answers with status {answer.status}"
            )
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            document = None
        return answer.status, document if isinstance(document, dict) else {}

    def _connection(self, host: str, port: int | None) -> http.client.HTTPConnection:
        if self.tls is None:
            return http.client.HTTPConnection(host, port, timeout=self.timeout_s)
        return http.client.HTTPSConnection(host, port, timeout=self.timeout_s, context=self.tls)


def located(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options with their files' paths made absolute, relative to ``folder``."""
    return {
        name: str(folder / value) if name in _FILES and isinstance(value, str) and value else value
        for name, value in options.items()
    }


def load_registry(options: Mapping[str, Any], folder: Path | None = None) -> RegistryClient:
    """Return the client of a configuration table (:data:`REGISTRY`); files are relative to
    ``folder``.

    Raises :class:`ConfigError` naming the invalid option.
    """
    taken = SettingTable("the schema registry", REGISTRY, removed=_REMOVED).take(options)
    url: Url = taken["url"]
    if taken["token"] and taken["user"]:
        raise ConfigError("the schema registry has both a user and a token: give one of them")

    files = located(taken, folder or Path())
    tls = _tls(files) if url.scheme == "https" else None
    authorization = None
    if taken["token"]:
        authorization = f"Bearer {taken['token']}"
    elif taken["user"]:
        keep_pair(taken["user"], taken["password"])
        pair = f"{taken['user']}:{taken['password']}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    return RegistryClient(
        replace(url, path=url.path.rstrip("/"), query="").text(),
        authorization,
        tls,
        taken["auto_register"],
    )


def _tls(files: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files["ca_file"] or None)
        if files["client_cert"]:
            context.load_cert_chain(files["client_cert"])
    except OSError as e:  # ssl.SSLError is one
        raise ConfigError(f"a TLS file of the schema registry can't be read ({e})") from e
    return context
