"""Accounts that the options name: used before any other, and never shown."""

from __future__ import annotations

import asyncio
import datetime as dt
import json
import sys
import threading
from contextlib import aclosing, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs

import anyio
import anyio.to_thread
import pytest

from tailer.config.feeds import load_config
from tailer.errors import ConfigError, TableError, TailerError
from tailer.storage import open_store
from tailer.store.s3.options import S3Options
from tests.s3.fixture import ACCESS, SECRET, Bucket
from tests.s3.front import Fault, run_front
from tests.s3.objects import Objects

pytestmark = pytest.mark.anyio

OWN = {"access_key_id": ACCESS, "secret_access_key": SECRET}


async def test_an_account_of_the_options_goes_before_the_environments(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "another")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "account")
    async with aclosing(open_store(bucket.address("orders"), bucket.options)) as store:
        with pytest.raises(TableError, match="check the access key"):
            await store.read("x")
    async with aclosing(open_store(bucket.address("orders"), {**bucket.options, **OWN})) as store:
        assert (await store.read("x"))[0] == b"found"


async def test_a_wrong_secret_is_refused_and_not_told(bucket: Bucket) -> None:
    options = {**bucket.options, **OWN, "secret_access_key": "hush"}
    async with aclosing(open_store(bucket.address("orders"), options)) as store:
        with pytest.raises(TableError, match="SignatureDoesNotMatch") as refused:
            await store.read("x")
    assert "hush" not in str(refused.value)


class Roles(BaseHTTPRequestHandler):
    """A server that grants a role to an account: the account of the S3 server, for a while."""

    asked: ClassVar[list[dict[str, str]]] = []

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        given = {name: values[0] for name, values in parse_qs(form).items()}
        self.asked.append({**given, "by": self.headers["Authorization"]})
        refused = given.get("ExternalId") != "external-1"
        self.send_response(403 if refused else 200)
        body = REFUSED if refused else GRANTED.format(access=ACCESS, secret=SECRET)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None:
        """Say nothing."""


GRANTED = """<AssumeRoleResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleResult><AssumedRoleUser><Arn>arn:aws:sts::1:assumed-role/reader/s</Arn>
<AssumedRoleId>A:s</AssumedRoleId></AssumedRoleUser><Credentials>
<AccessKeyId>{access}</AccessKeyId><SecretAccessKey>{secret}</SecretAccessKey>
<SessionToken>token-of-the-role</SessionToken><Expiration>2099-01-01T00:00:00Z</Expiration>
</Credentials></AssumeRoleResult></AssumeRoleResponse>"""
REFUSED = """<ErrorResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/"><Error>
<Type>Sender</Type><Code>AccessDenied</Code><Message>not yours</Message></Error></ErrorResponse>"""


async def test_a_role_is_assumed_by_the_account_of_the_options(bucket: Bucket) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Roles)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    role = {
        "access_key_id": "assuming", "secret_access_key": "hush-assuming",
        "role_arn": "arn:aws:iam::1:role/reader", "role_external_id": "external-1",
        "sts_endpoint_url": f"http://127.0.0.1:{server.server_port}",
    }  # fmt: skip
    try:
        # The S3 server grants no tokens, and refuses the role's.
        for external, told in (("external-1", "InvalidToken"), ("another", "not yours")):
            options = {**bucket.options, **role, "role_external_id": external}
            async with aclosing(open_store(bucket.address("orders"), options)) as store:
                with pytest.raises(TailerError, match=told):
                    await store.read("x")
    finally:
        await anyio.to_thread.run_sync(server.shutdown)
        server.server_close()
    first = Roles.asked[0]
    assert "Credential=assuming/" in first["by"]
    assert first["RoleArn"] == "arn:aws:iam::1:role/reader"
    assert first["RoleSessionName"] == "delta-tailer"


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"role_external_id": "x"}, "role_external_id belongs to a role_arn"),
        ({"role_arn": "x", "anonymous": True}, "role_arn and anonymous exclude each other"),
        ({"access_key_id": "hush"}, "go together: give both or none"),
        ({"secret_access_key": "hush"}, "go together: give both or none"),
        ({"session_token": "hush"}, "session_token belongs to an access_key_id"),
        ({**OWN, "anonymous": True}, "access_key_id and anonymous exclude each other"),
        ({**OWN, "profile": "lake"}, "access_key_id and profile exclude each other"),
        (
            {**OWN, "session_token": ["hush"]},
            "option 'session_token' of the S3 store must be a string",
        ),
    ],
)
async def test_half_an_account_or_two_are_refused(options: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refused:
        S3Options.from_options(options)
    assert "hush" not in str(refused.value)
    assert SECRET not in str(refused.value)


async def test_no_account_is_shown_where_options_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = S3Options.from_options({**OWN, "session_token": "hush"})
    assert not any(word in repr(options) for word in (ACCESS, SECRET, "hush"))
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    path = tmp_path / "tailer.toml"
    path.write_text(
        '[store.s3]\naccess_key_id = "a"\nsecret_access_key = "${LAKE_SECRET}"\n'
        '[daemon]\nstate = "state"\n'
        '[feeds.orders]\ntable = "s3://lake/orders"\n'
        '[feeds.orders.sink]\ntype = "jsonl"\npath = "-"\n'
    )
    config = load_config(path)
    assert config.feeds["orders"].store["secret_access_key"] == SECRET
    assert SECRET not in repr(config)


async def test_the_token_of_a_temporary_account_in_the_environment_is_sent(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a token")
    with run_front(bucket) as front:
        store = open_store(front.bucket.address("orders"), front.bucket.options)
        async with aclosing(store):
            with suppress(FileNotFoundError, TableError):
                await store.read("x")
        assert front.last_headers["X-Amz-Security-Token"] == "a token"


async def test_a_profile_that_is_not_there_is_said_beside_an_account_in_the_environment(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    store = open_store(bucket.address("orders"), bucket.options)
    with pytest.raises(ConfigError, match=r"nobody.*profiles are in ~/\.aws/config"):
        await store.read("x")


READS = """
import asyncio, json, sys
from tailer.storage import open_store

async def main():
    store = open_store(sys.argv[1], json.loads(sys.argv[2]))
    print((await store.read("x"))[0].decode())
    await store.aclose()

asyncio.run(main())
print(sorted({name.partition(".")[0] for name in sys.modules} & {"botocore", "pyarrow"}))
"""


async def test_neither_botocore_nor_pyarrow_is_loaded_where_they_are_not_needed(
    bucket: Bucket,
) -> None:
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    command = [sys.executable, "-c", READS, bucket.address("orders"), json.dumps(bucket.options)]
    done = await anyio.run_process(command)
    assert done.stdout.decode().split("\n")[:2] == ["found", "[]"]


async def test_a_token_of_the_environment_is_not_sent_with_the_options_account(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SESSION_TOKEN", "a token")
    with run_front(bucket) as front:
        store = open_store(front.bucket.address("orders"), {**front.bucket.options, **OWN})
        with suppress(FileNotFoundError):
            await store.read("x")
        assert "X-Amz-Security-Token" not in front.last_headers
        signed = await store.presigner(dt.datetime.now(dt.UTC), 60)
    assert signed is not None
    assert "Security-Token" not in str(signed("x"))


async def test_expired_credentials_are_looked_up_again(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """They may have been renewed where they were found."""
    config = tmp_path / "config"
    config.write_text(
        f"[profile lake]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    with run_front(bucket) as front:
        options = {**front.bucket.options, "profile": "lake"}
        stores = [open_store(bucket.address("orders"), options) for _ in range(2)]
        front.fail(Fault("expired", "get", 1))
        assert (await stores[0].read("x"))[0] == b"found"
        front.fail(Fault("expired", "get", 9))
        for store in stores:
            with pytest.raises(TableError, match="the credentials have expired; renew them"):
                await store.read("x")
        assert front.requests["get"] == 6, "each asks twice"


async def test_requests_at_once_find_the_region_of_their_bucket(bucket: Bucket) -> None:
    async with Objects(bucket) as objects:
        await objects.put("orders/x", b"found")
    store = open_store(bucket.address("orders"), {**bucket.options, "region": "ap-south-1"})
    found = await asyncio.gather(*(store.read("x") for _ in range(20)), store.stat("x"))
    assert len(found) == 21
