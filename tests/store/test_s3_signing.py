"""Signatures of requests: made by botocore, and used again while a poll finds nothing."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials

from tailer.store.s3.signing import Signed, Signer
from tailer.store.s3.store import S3Store
from tests.s3.fixture import Bucket
from tests.s3.objects import Objects

OURS = ReadOnlyCredentials("key", "secret", None)
RENEWED = ReadOnlyCredentials("key", "another secret", "token")
URL = "http://localhost/bucket/t/_delta_log/00000000000000000007.json"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The URLs that were signed, one by one."""
    urls: list[str] = []
    add_auth = S3SigV4Auth.add_auth

    def counting(self: S3SigV4Auth, request: AWSRequest) -> None:
        urls.append(request.url)
        add_auth(self, request)

    monkeypatch.setattr(S3SigV4Auth, "add_auth", counting)
    return urls


def sign(
    signer: Signer,
    *,
    credentials: ReadOnlyCredentials = OURS,
    url: str = URL,
    body: bytes = b"",
    headers: Mapping[str, str] = {},
) -> Signed:
    return signer.sign(credentials, "us-east-1", ("GET", url, body), headers)


def test_a_request_that_found_nothing_keeps_its_signature_for_a_while(made: list[str]) -> None:
    clock = Clock()
    signer = Signer(clock)
    first = sign(signer)
    assert "Authorization" in first.headers
    signer.found_nothing(first)
    clock.now = 59.0
    again = sign(signer)
    assert again.headers is first.headers
    signer.found_nothing(again)  # which does not make it younger
    clock.now = 61.0
    assert sign(signer).headers is not first.headers
    assert len(made) == 2


def test_another_request_has_a_signature_of_its_own(made: list[str]) -> None:
    signer = Signer()
    signer.found_nothing(sign(signer))
    others = [
        sign(signer, credentials=RENEWED),
        sign(signer, url=f"{URL}?versionId=1"),
        sign(signer, headers={"Range": "bytes=0-9"}),
        sign(signer, body=b"what is put"),
    ]
    assert len(made) == 5
    assert len({signed.headers["Authorization"] for signed in others}) == 4
    assert others[0].headers["X-Amz-Security-Token"] == "token"


def test_what_was_found_is_signed_anew(made: list[str]) -> None:
    signer = Signer()
    signed = sign(signer)
    signer.found_nothing(signed)
    signer.found(signed)
    sign(signer)
    assert len(made) == 2


@pytest.mark.anyio
async def test_polls_of_a_real_server_are_signed_once(bucket: Bucket, made: list[str]) -> None:
    store = S3Store(bucket.address("t"), bucket.options)
    async with Objects(bucket) as objects:
        for _ in range(5):
            with pytest.raises(FileNotFoundError):
                await store.read("_delta_log/00000000000000000000.json", 0, 1024)
        polls = [url for url in made if url.endswith("/t/_delta_log/00000000000000000000.json")]
        assert len(polls) == 1
        await objects.put("t/_delta_log/00000000000000000000.json", b"{}\n")
        data, _ = await store.read("_delta_log/00000000000000000000.json", 0, 1024)
        assert data == b"{}\n"
    await store.aclose()
