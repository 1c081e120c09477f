"""Real servers of Azure's and Google's storage for the tests: Azurite, which npm fetches, and
fake-gcs-server, which Go builds. Their containers, and those of S3's server (:mod:`tests.s3`)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import pytest

from tests.support.components import go_server, npm_package, require
from tests.support.servers import Server

Cloud = Literal["s3", "azure", "gcs"]
#: Those of the servers here.
CLOUDS: tuple[Cloud, ...] = ("azure", "gcs")
#: Parameters of a fixture that starts the server of each: the names of the servers' fixtures.
SERVERS = [
    pytest.param("azurite", marks=pytest.mark.needs("azurite")),
    pytest.param("gcs_server", marks=pytest.mark.needs("gcs")),
    pytest.param("s3_server", marks=pytest.mark.needs("s3")),
]
#: The account and the region of the S3 server.
S3_ACCESS, S3_SECRET, S3_REGION = "test-access", "test-secret", "eu-central-1"

#: Azurite's account, which everyone knows.
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
_API = "2021-08-06"
_SOURCES = Path(__file__).parent / "server"
_PROGRAM = "gcsserver"


AZURITE = npm_package("azurite", "Azurite, Azure's storage,", "3.37.0")
GCS = go_server("gcs", "the server of Google's storage", _SOURCES, _PROGRAM)


@dataclass(frozen=True, slots=True)
class Container:
    """A container or bucket of a server at ``url``, and how to reach it."""

    cloud: Cloud
    name: str
    url: str
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def options(self) -> dict[str, Any]:
        """The options of our store."""
        if self.cloud == "gcs":
            return {"endpoint_url": self.url, "anonymous": True, **self.more}
        if self.cloud == "s3":
            account = {"access_key_id": S3_ACCESS, "secret_access_key": S3_SECRET}
            return {"endpoint_url": self.url, "region": S3_REGION, **account, **self.more}
        return {"account_name": ACCOUNT, "account_key": KEY, "endpoint_url": self.url, **self.more}

    @property
    def spark(self) -> dict[str, str]:
        """The same as options of Spark's."""
        secret = ("account_key", "access_key_id", "secret_access_key")
        named = {name: f"store.secret.{name}" for name in secret}
        return {named.get(k, f"store.{k}"): str(v) for k, v in self.options.items()}

    @property
    def environment(self) -> dict[str, str]:
        """The account as variables of the environment."""
        if self.cloud == "gcs":
            return {
                "GOOGLE_SERVICE_ACCOUNT_KEY": _nobody(self.url),
                "GOOGLE_BASE_URL": self.url,
            }
        if self.cloud == "s3":
            return {
                "AWS_ACCESS_KEY_ID": S3_ACCESS,
                "AWS_SECRET_ACCESS_KEY": S3_SECRET,
                "AWS_ENDPOINT_URL": self.url,
                "AWS_REGION": S3_REGION,
            }
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": self.url,
        }

    @property
    def deltalake(self) -> dict[str, str]:
        """The storage options of deltalake."""
        if self.cloud == "gcs":
            return {"google_service_account_key": _nobody(self.url), "allow_http": "true"}
        if self.cloud == "s3":
            return {
                **{name.lower(): value for name, value in self.environment.items()},
                "aws_allow_http": "true",
                "aws_conditional_put": "etag",
            }
        return {
            "azure_storage_account_name": ACCOUNT,
            "azure_storage_account_key": KEY,
            "azure_storage_endpoint": self.url,
            "allow_http": "true",
        }

    @property
    def scheme(self) -> str:
        """The scheme of its addresses."""
        return {"s3": "s3", "azure": "az", "gcs": "gs"}[self.cloud]

    def address(self, key: str) -> str:
        """The address of a key."""
        return f"{self.scheme}://{self.name}/{key}"

    @property
    def other_client(self) -> Any:
        """A client of what others write, and what others see."""
        return _client(self.cloud, self.name, self.url)

    async def put(self, key: str, data: bytes) -> None:
        """Write an object."""
        import obstore

        await obstore.put_async(self.other_client, key, data, use_multipart=False)

    def read(self, key: str) -> bytes:
        """An object's bytes, from outside of an event loop."""
        import obstore

        return bytes(obstore.get(self.other_client, key).bytes())

    async def get(self, key: str) -> bytes:
        """An object's bytes."""
        import obstore

        return bytes(await (await obstore.get_async(self.other_client, key)).bytes_async())

    async def delete(self, key: str) -> None:
        """Remove an object."""
        import obstore

        await obstore.delete_async(self.other_client, key)

    async def keys(self, prefix: str = "") -> list[str]:
        """The keys in a folder, and below."""
        import obstore

        pages = obstore.list(self.other_client, prefix.rstrip("/") or None)
        return sorted([meta["path"] async for page in pages for meta in page])

    async def upload(self, folder: Path, key: str) -> None:
        """Put every file of a folder that is not there yet below a key, in the order of names."""
        known = set(await self.keys(key))
        for file in sorted(folder.rglob("*")):  # noqa: ASYNC240 - a test's own few files
            name = f"{key}/{file.relative_to(folder).as_posix()}"
            if file.is_file() and name not in known:
                await self.put(name, file.read_bytes())

    def at(self, url: str) -> Container:
        """The same by another way."""
        return replace(self, url=url)


@cache
def _client(cloud: Cloud, name: str, url: str) -> Any:
    """One for each container: to make one takes as long as some requests."""
    from obstore.store import AzureStore, GCSStore, S3Store

    if cloud == "s3":
        return S3Store(
            name, access_key_id=S3_ACCESS, secret_access_key=S3_SECRET, region=S3_REGION,
            endpoint=url, client_options={"allow_http": True},
        )  # fmt: skip
    if cloud == "gcs":
        return GCSStore(name, service_account_key=_nobody(url), client_options={"allow_http": True})
    return AzureStore(
        name, account_name=ACCOUNT, account_key=KEY, endpoint=url,
        client_options={"allow_http": True},
    )  # fmt: skip


class CloudServer(Server):
    """A server of one cloud's storage."""

    cloud: Cloud

    @property
    def url(self) -> str:
        """What clients take for the cloud's address."""
        return f"http://127.0.0.1:{self.port}"

    def container(self, name: str = "") -> Container:
        """A new container."""
        name = name or f"c-{uuid.uuid4()}"
        self.make_container(name)
        return Container(self.cloud, name, self.url)

    def make_container(self, name: str) -> None:
        """Make a container, by a request of its own: obstore makes none."""
        raise NotImplementedError


class Azurite(CloudServer):
    """Azure's storage."""

    name = "azurite"
    cloud: Cloud = "azure"

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/{ACCOUNT}"

    def start(self) -> None:
        program = AZURITE.path() / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
        self.launch(
            "node", program, "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
            "--location", self.folder / "data", "--silent", "--skipApiVersionCheck",
            "--disableTelemetry",
        )  # fmt: skip

    def make_container(self, name: str) -> None:
        moment = datetime.now(UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
        text = (
            f"PUT{chr(10) * 12}x-ms-date:{moment}\nx-ms-version:{_API}\n"
            f"/{ACCOUNT}/{ACCOUNT}/{name}\nrestype:container"
        )
        headers = {
            "x-ms-date": moment,
            "x-ms-version": _API,
            "Authorization": f"SharedKey {ACCOUNT}:{_signed(text)}",
        }
        _made(self.url, "PUT", f"/{ACCOUNT}/{name}?restype=container", headers)


class GcsServer(CloudServer):
    """Google's storage."""

    name = "gcs"
    cloud: Cloud = "gcs"

    def start(self) -> None:
        data = self.folder / "data"
        data.mkdir(exist_ok=True)
        self.launch(GCS.path() / _PROGRAM, f"127.0.0.1:{self.port}", data)

    def make_container(self, name: str) -> None:
        body = f'{{"name": "{name}"}}'
        _made(self.url, "POST", "/storage/v1/b", {"Content-Type": "application/json"}, body)


def _made(url: str, method: str, path: str, headers: Mapping[str, str], body: str = "") -> None:
    with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=100)) as connection:
        length = {"Content-Length": str(len(body))}
        connection.request(method, path, body or None, {**headers, **length})
        answer = connection.getresponse()
        said = answer.read()
        assert answer.status in (200, 201), said


def _nobody(url: str) -> str:
    """A service account that signs nothing, of an emulator."""
    fields = {"client_email": "", "private_key": "", "private_key_id": ""}
    return json.dumps({"gcs_base_url": url, "disable_oauth": True, **fields})


def _signed(text: str) -> str:
    made = hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()
    return base64.b64encode(made).decode()


def sas_token(lasts: timedelta = timedelta(hours=1), rights: str = "rl") -> str:
    """A signature of Azurite's account for all its containers, as a portal or `az` makes one."""
    start, end = (
        (datetime.now(UTC) + at).strftime("%Y-%m-%dT%H:%M:%SZ")
        for at in (timedelta(hours=-1), lasts)
    )
    text = f"{ACCOUNT}\n{rights}\nb\nsco\n{start}\n{end}\n\nhttps,http\n{_API}\n\n"
    fields = {
        "sv": _API, "ss": "b", "srt": "sco", "sp": rights, "st": start, "se": end,
        "spr": "https,http", "sig": _signed(text),
    }  # fmt: skip
    return "&".join(f"{name}={quote(value, safe='')}" for name, value in fields.items())


_SERVERS: Mapping[Cloud, Callable[[], CloudServer]] = {"azure": Azurite, "gcs": GcsServer}


@contextmanager
def run_cloud(cloud: Cloud) -> Iterator[CloudServer]:
    """A server of a cloud's storage; ended with the block."""
    require("obstore", find_spec("obstore") is not None)
    with _SERVERS[cloud]() as server:
        yield server
