"""A client of a schema registry that speaks Confluent's REST API. Blocking: for worker threads.

Nothing is retried here. An error that may pass (no answer, a time-out, 5xx, too many requests, or
an answer that is not a registry's) is a :class:`TransientError`, and the feed retries; a permanent
one (an incompatible schema, wrong credentials) is a :class:`SinkRejected` that names the subject.
Messages never contain credentials.
"""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import quote

import aiohttp
from msgspec import structs
from yarl import URL

from sinks.messages.tls import CA_FILE
from tailer.errors import ConfigError, TailerError, TargetRefused, TransientError, printable
from tailer.network.http_answers import Oversize, read_whole_body
from tailer.network.reach import explain_unreached
from tailer.secrets import keep_pair
from tailer.secrets.urls import Url, parse_url
from tailer.settings import REQUIRED, Setting, SettingTable

REGISTRY: dict[str, Setting] = {
    "url": Setting(
        "text", REQUIRED, "Address of the registry.", form="http(s)://host[:port]",
        parse=partial(parse_url, schemes=("http", "https"), login=False),
    ),
    "user": Setting("text", "", "User name, with `password`."),
    "password": Setting("text", "", "Password of `user`.", secret=True),
    "token": Setting("text", "", "Bearer token, instead of a user.", secret=True, advanced=True),
    "ca_file": CA_FILE,
    "client_cert": Setting("text", "", "PEM file of the client's certificate and key.",
        advanced=True),
    "auto_register": Setting(
        "flag", True, "Register new schemas; otherwise they must be registered already.",
        advanced=True,
    ),
}  # fmt: skip

_FILES = ("ca_file", "client_cert")
_CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
#: Of the statuses that are no faults of the registry: of the schema, of the account.
_FOR_GOOD = (400, 401, 403, 404, 405, 406, 409, 413, 415, 422)
_BUSY = (408, 429)
_NO_ACCESS = (401, 403)
_NOT_IMPLEMENTED = 501
#: Statuses of a look-up for which there is no right, or no way through a gateway.
_NOT_TO_BE_READ = (401, 403, 404, 405, _NOT_IMPLEMENTED)
#: How a registry says that it has no schema with an id, no subject or no version.
_NO_SUCH_SCHEMA, _NO_SUCH_SUBJECT, _NO_SUCH_VERSION = 40403, 40401, 40402
_MISSING = (_NO_SUCH_SCHEMA, _NO_SUCH_SUBJECT, _NO_SUCH_VERSION)
#: The id of a schema that only would be registered; registries count from 1.
PLACEHOLDER = 0
#: The wire format has four bytes for an id, and registries count in signed ones.
_ID_MAX = 2**31 - 1
_PROXY = ", and any proxy between it and this machine"
#: An answer has an id, or a sentence or two.
_ANSWER_BYTES_MAX = 1024 * 1024


class Registry(Protocol):
    """A schema registry, as an encoder uses it."""

    def register(self, subject: str, schema: str, *, kind: str = "AVRO") -> int:
        """Return the id of a schema (its text) under a subject, registering a new one. ``kind`` is
        AVRO, JSON or PROTOBUF.

        Raises :class:`SinkRejected` if the registry refuses the schema as incompatible,
        :class:`TransientError` if it does not answer.
        """

    def list_versions(self, subject: str) -> list[int]:
        """Return the versions of a subject, the oldest first; none if there is no such subject.
        Raises as :meth:`register`."""

    def read_version(self, subject: str, version: int) -> tuple[int, str, str]:
        """Return id, text and kind of a version of a subject. Raises as :meth:`register`."""


@dataclass(frozen=True, slots=True)
class RegistryClient:
    """Registers schemas, or only looks them up if ``auto_register`` is false. A ``dry`` one looks
    them up too, and returns :data:`PLACEHOLDER` if there is none.

    ``authorization`` is the value of that header, or None; ``tls`` the context of an https URL.
    """

    url: str
    authorization: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    auto_register: bool = True
    timeout_s: int = 10
    dry: bool = False

    def register(self, subject: str, schema: str, *, kind: str = "AVRO") -> int:
        """Return the id of a schema under a subject, which is registered if it is not."""
        path = f"/subjects/{quote(subject, safe='')}"
        if self.auto_register and not self.dry:
            path += "/versions"
        answer = self._ask_registry("POST", path, {"schemaType": kind, "schema": schema})
        number = answer.document.get("id")
        if answer.status == 200 and type(number) is int and PLACEHOLDER < number <= _ID_MAX:
            if kind != "PROTOBUF":  # of which the caller reads what is there
                self._check_id(number, subject, schema)
            return number
        missing = answer.document.get("error_code") in _MISSING
        if missing and self.dry and self.auto_register:
            return PLACEHOLDER
        raise self._make_refusal(subject, answer)

    def list_versions(self, subject: str) -> list[int]:
        """Return the versions of a subject; none if there is no such subject."""
        answer = self._ask_registry("GET", f"/subjects/{quote(subject, safe='')}/versions")
        if answer.document.get("error_code") == _NO_SUCH_SUBJECT:
            return []
        if answer.status == 200 and answer.numbers:
            return sorted(answer.numbers)
        raise self._make_refusal(subject, answer)

    def read_version(self, subject: str, version: int) -> tuple[int, str, str]:
        """Return id, text and kind of a version of a subject."""
        path = f"/subjects/{quote(subject, safe='')}/versions/{version}"
        answer = self._ask_registry("GET", path)
        if answer.document.get("error_code") in _MISSING:
            raise TransientError(f"{self._where} lists version {version} of {subject!r} without it")
        match answer.document:
            case {"id": int(number), "schema": str(text)} if (
                answer.status == 200 and PLACEHOLDER < number <= _ID_MAX
            ):
                given = [answer.document.get(part) for part in ("subject", "version")]
                if given[1] != version or not f":{given[0]}".endswith(f":{subject}"):
                    raise TransientError(  # (a context comes before the name of a subject)
                        f"{self._where} answers with version {given[1]} of {given[0]!r} for "
                        f"version {version} of {subject!r}; check the registry{_PROXY}"
                    )
                kind = str(answer.document.get("schemaType", "AVRO"))
                self._check_id(number, subject, text, kind)
                return number, text, kind
        raise self._make_refusal(subject, answer)

    def _check_id(self, number: int, subject: str, schema: str, kind: str = "") -> None:
        """Raise :class:`TransientError` if another schema, or one of another ``kind``, has this id:
        nobody could read what is written with it. Who may write need not have the right to read:
        then it is believed."""
        answer = self._ask_registry("GET", f"/schemas/ids/{number}")
        missing = answer.document.get("error_code") == _NO_SUCH_SCHEMA
        if answer.status in _NOT_TO_BE_READ and not missing:
            return
        found, found_kind = (answer.document.get(n) for n in ("schema", "schemaType"))
        if (
            answer.status != 200
            or not isinstance(found, str)
            or _find_shape(found) != _find_shape(schema)
            or (kind and kind != (found_kind or "AVRO"))
        ):
            raise TransientError(
                f"{self._where} gives subject {subject!r} the id {number}, under which it has "
                f"{'no schema' if missing else 'another schema'}; check the registry{_PROXY}"
            )

    @property
    def _where(self) -> str:
        return f"the schema registry at {self.url}"

    def _make_refusal(self, subject: str, answer: _RegistryAnswer) -> TailerError:
        where, status, said = self._where, answer.status, answer.message
        if status not in _FOR_GOOD or not said:
            # A proxy's page has any status.
            lacks = "an id" if status == 200 else "a registry's message"
            access = ", its credentials" if status in _NO_ACCESS else ""
            return TransientError(
                f"{where} answers with status {status}, {said or f'without {lacks}'}; check its "
                f"URL{access}{_PROXY}"
            )
        if status == 409:
            return TargetRefused(
                f"{where} refuses the schema of subject {subject!r} as incompatible with an "
                f"earlier one ({said}); change the subject's compatibility, or use a new topic"
            )
        if status in _NO_ACCESS:
            return TargetRefused(
                f"{where} refuses access to subject {subject!r} ({said}); check its credentials"
            )
        if status == 404 and not self.auto_register:
            return TargetRefused(
                f"{where} does not have this schema under subject {subject!r}, and auto_register "
                "is off; register it first"
            )
        return TargetRefused(f"{where} refuses the schema of subject {subject!r} ({said})")

    def _ask_registry(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> _RegistryAnswer:
        """Return an answer. Raises :class:`TransientError` if there is none."""
        try:
            answer = asyncio.run(self._fetch_answer(method, path, body))
        except aiohttp.ClientConnectorCertificateError as e:
            said = getattr(e.certificate_error, "verify_message", e.certificate_error)
            raise TargetRefused(
                f"the certificate of {self._where} is not trusted ({said}); set ca_file"
            ) from None
        except Oversize as e:
            raise TransientError(f"{self._where} gives too large an answer: {e}") from None
        except (OSError, ValueError, aiohttp.ClientError) as e:
            raise explain_unreached(self._where, e, "its URL") or TransientError(
                f"{self._where} does not answer ({self._format_reason(e)})"
            ) from e
        unable = answer.status >= 500 and answer.status != _NOT_IMPLEMENTED
        if unable or answer.status in _BUSY:
            raise TransientError(f"{self._where} answers with status {answer.status}")
        return answer

    def _format_reason(self, e: Exception) -> str:
        if isinstance(e, TimeoutError):
            return f"no whole answer in {self.timeout_s} s"
        if isinstance(e, aiohttp.ServerDisconnectedError):
            return "it ended the connection"  # the library's words have the headers of an answer
        message = getattr(e, "message", None)
        said = message if isinstance(message, str) else str(e)
        return printable(said.partition("\n")[0], 300) or type(e).__name__

    async def _fetch_answer(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> _RegistryAnswer:
        headers = {"Content-Type": _CONTENT_TYPE, "Accept": _CONTENT_TYPE}
        headers["Accept-Encoding"] = "identity"
        if self.authorization is not None:
            headers["Authorization"] = self.authorization
        session = aiohttp.ClientSession(
            # For one request: its connection is not kept, and so is closed before the loop ends.
            connector=aiohttp.TCPConnector(ssl=self.tls or True, force_close=True),
            cookie_jar=aiohttp.DummyCookieJar(),
            # For all of it: a server can send a byte before each time-out of its socket.
            timeout=aiohttp.ClientTimeout(total=self.timeout_s),
            auto_decompress=False,
        )
        url = URL(self.url + path, encoded=True)
        data = None if body is None else json.dumps(body).encode()
        async with (
            session,
            # A redirect would send the credentials to any server that it names.
            session.request(
                method, url, data=data, headers=headers, allow_redirects=False
            ) as response,
        ):
            return _RegistryAnswer(
                response.status, b"".join(await read_whole_body(response, _ANSWER_BYTES_MAX))
            )


class _RegistryAnswer:
    """Status and JSON object of an answer, or list of integers; empty ones for anything else."""

    def __init__(self, status: int, body: bytes) -> None:
        self.status = status
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            document = None
        self.document: dict[str, Any] = document if isinstance(document, dict) else {}
        listed = document if isinstance(document, list) else []
        self.numbers = listed if all(type(number) is int for number in listed) else []

    @property
    def message(self) -> str:
        """What a registry says about an error; "" if these are not the words of one."""
        message = self.document.get("message")
        if not isinstance(self.document.get("error_code"), int) or not isinstance(message, str):
            return ""
        return printable(message.strip().partition("\n")[0], 500) or f"status {self.status}"


def _find_shape(schema: str) -> object:
    """Return what no registry rewrites in a schema: of Avro a record's name and its fields', of
    Protobuf the words."""
    try:
        document = json.loads(schema)
    except (ValueError, RecursionError):
        return schema.split()
    match document:
        case {"name": name, "fields": [*fields]}:
            names = [field.get("name") if isinstance(field, dict) else None for field in fields]
            return str(name).rpartition(".")[2], names
    return document


def locate_files(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the options with their files' paths made absolute, relative to ``folder``."""
    return {
        name: str(folder / value) if name in _FILES and isinstance(value, str) and value else value
        for name, value in options.items()
    }


def load_registry(
    options: Mapping[str, Any], folder: Path | None = None, *, dry: bool = False
) -> RegistryClient:
    """Return the client of a configuration table (:data:`REGISTRY`); files are relative to
    ``folder``.

    Raises :class:`ConfigError` naming the invalid option.
    """
    taken = SettingTable("the schema registry", REGISTRY).take(options)
    url: Url = taken["url"]
    if taken["token"] and taken["user"]:
        raise ConfigError("the schema registry has both a user and a token: give one of them")

    files = locate_files(taken, folder or Path())
    tls = _make_tls_context(files) if url.scheme == "https" else None
    authorization = None
    if taken["token"]:
        authorization = f"Bearer {taken['token']}"
    elif taken["user"]:
        keep_pair(taken["user"], taken["password"])
        pair = f"{taken['user']}:{taken['password']}".encode()
        authorization = f"Basic {base64.b64encode(pair).decode()}"
    return RegistryClient(
        structs.replace(url, path=url.path.rstrip("/"), query="").to_text(),
        authorization,
        tls,
        taken["auto_register"],
        dry=dry,
    )


def _make_tls_context(files: Mapping[str, str]) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=files["ca_file"] or None)
        if files["client_cert"]:
            context.load_cert_chain(files["client_cert"])
    except OSError as e:  # ssl.SSLError is one
        raise ConfigError(f"a TLS file of the schema registry can't be read ({e})") from e
    return context
