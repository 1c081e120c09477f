"""A real S3 server for the tests: versitygw over a folder, built by Go."""

from __future__ import annotations

import os
import socket
import subprocess
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.clouds.servers import S3_ACCESS, S3_REGION, S3_SECRET, Container
from tests.support.components import free_port, go_server
from tests.support.servers import standing_still

ACCESS, SECRET, REGION = S3_ACCESS, S3_SECRET, S3_REGION
#: The account in the environment of whoever is to find it there.
ACCOUNT = {
    "AWS_ACCESS_KEY_ID": ACCESS,
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "AWS_EC2_METADATA_DISABLED": "true",
}
_SOURCES = Path(__file__).parent / "server"
_PROGRAM = "s3server"
_START_S = 100.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """A server at ``url`` for one account, whose buckets are the folders below ``folder``."""

    url: str
    folder: Path
    account: tuple[str, str] = (ACCESS, SECRET)
    process: subprocess.Popen[bytes] | None = None

    def still(self) -> AbstractContextManager[None]:
        """Have it stand still within the block."""
        assert self.process is not None
        return standing_still(self.process)

    def container(self) -> Container:
        """A new bucket, for the tests of all clouds."""
        return Container("s3", self.bucket(f"c-{uuid.uuid4()}").name, self.url)

    def bucket(self, name: str) -> Bucket:
        """A bucket, made if it is not there."""
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return Bucket(name, self.url, account=self.account, folder=folder)


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket and how to reach it, for this project and for others' clients."""

    name: str
    url: str
    more: Mapping[str, Any] = field(default_factory=dict)
    account: tuple[str, str] = (ACCESS, SECRET)
    folder: Path = Path()

    def read(self, key: str) -> bytes:
        """An object's bytes, as they lie on the server's disk."""
        return (self.folder / key).read_bytes()

    @property
    def options(self) -> dict[str, Any]:
        """The options of our S3 store; the account is in the environment."""
        return {"endpoint_url": self.url, "region": REGION, **self.more}

    @property
    def deltalake(self) -> dict[str, str]:
        """The storage options of deltalake."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_REGION": REGION,
            "AWS_ACCESS_KEY_ID": self.account[0],
            "AWS_SECRET_ACCESS_KEY": self.account[1],
            "AWS_ALLOW_HTTP": "true",
            "AWS_VIRTUAL_HOSTED_STYLE_REQUEST": "false",
            "aws_conditional_put": "etag",
        }

    def address(self, key: str) -> str:
        """The address of a key."""
        return f"s3://{self.name}/{key}"


S3_SERVER = go_server("s3", "the S3 server", _SOURCES, _PROGRAM, measured=True)


@contextmanager
def run_server(
    folder: Path, port: int = 0, account: tuple[str, str] = (ACCESS, SECRET)
) -> Iterator[S3Server]:
    """A server over a folder for one account, its key and its secret; ended with the block."""
    port = port or free_port()
    settings = {"S3_ACCESS": account[0], "S3_SECRET": account[1], "S3_REGION": REGION}
    with subprocess.Popen(
        [str(S3_SERVER.path() / _PROGRAM), f"127.0.0.1:{port}", str(folder)],
        env={**os.environ, **settings}, stdout=subprocess.DEVNULL,
    ) as process:  # fmt: skip
        try:
            _wait_for(process, port)
            yield S3Server(f"http://127.0.0.1:{port}", folder, account, process)
        finally:
            process.kill()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.01)
        else:
            return
    raise AssertionError(f"the S3 server did not start (its status is {process.poll()})")
