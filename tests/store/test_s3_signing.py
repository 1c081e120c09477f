"""Signatures of requests: the same as botocore's, which takes five times as long to make them."""

from __future__ import annotations

import datetime as dt
from urllib.parse import quote

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials
from hypothesis import given
from hypothesis import strategies as st

from tailer.store.s3.signing import Account, Request, signed

TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=0x2FF), max_size=20)
TOKENS = st.none() | st.text("abc/+=", min_size=1, max_size=40)
HOSTS = st.sampled_from(
    ["http://localhost:9000", "http://127.0.0.1", "https://bucket.s3.eu-west-1.amazonaws.com",
     "https://Lake.example:443", "http://lake.example:80", "https://lake.example:8443"]
)  # fmt: skip
HEADERS = st.dictionaries(
    st.sampled_from(["Range", "If-Match", "If-None-Match", "x-amz-request-payer", "Content-Type"]),
    st.text('abc 0123-=*"', min_size=1, max_size=20),
)
QUERY = st.dictionaries(st.sampled_from(["list-type", "prefix", "delimiter", "uploads"]), TEXT)


@given(
    st.sampled_from(["GET", "HEAD", "PUT", "DELETE"]), HOSTS, TEXT, QUERY, HEADERS, TOKENS,
    st.binary(max_size=50), st.text("abc/+", min_size=1, max_size=40),
)  # fmt: skip
def test_the_signature_is_botocores(
    method: str,
    host: str,
    key: str,
    query: dict[str, str],
    headers: dict[str, str],
    token: str | None,
    body: bytes,
    secret: str,
) -> None:
    asked = "&".join(f"{name}={quote(value, safe='~')}" for name, value in sorted(query.items()))
    url = f"{host}/lake/{quote(key, safe='/~')}" + (f"?{asked}" if asked else "")
    judge = AWSRequest(method=method, url=url, headers=dict(headers), data=body)
    keys = ReadOnlyCredentials("AKIA", secret, token)
    S3SigV4Auth(keys, "s3", "eu-west-1").add_auth(judge)
    moment = dt.datetime.strptime(f"{judge.headers['X-Amz-Date']}+0000", "%Y%m%dT%H%M%SZ%z")
    made = signed(
        Account("AKIA", secret, token),
        "eu-west-1",
        Request(method, url, headers, body),
        moment,
    )
    assert made == dict(judge.headers.items())


@pytest.mark.parametrize("keys", [Account("a", "hush", "hush"), Account("a", "hush")])
def test_an_account_shows_no_secret(keys: Account) -> None:
    assert "hush" not in repr(keys)
    assert "hush" not in f"{keys}"
