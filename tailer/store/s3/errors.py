"""What an S3 server's refusal means, and who must act.

A refusal is recognized by its status and by the code in its XML body; HEAD answers have no body.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import aiohttp
from msgspec import Struct

from tailer.errors import TableError, TailerError, TransientError, printable
from tailer.network.http_answers import http_date
from tailer.network.http_answers import retry_after_s as parse_retry_after

__all__ = [
    "S3Answer",
    "Unfit",
    "error_code",
    "is_about_more_than_the_key",
    "no_tls",
    "not_reached",
    "refusal",
    "region_of",
    "retry_after_s",
    "worth_retrying",
]

_CODE = re.compile(rb"<Code>([^<]{1,100})</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,500})</Message>")
_REGION = re.compile(rb"<Region>([a-z0-9-]{1,40})</Region>")
_REGION_NAME = re.compile(r"[a-z0-9-]{1,40}")

#: Codes of 4xx answers that ask for a retry. 5xx and 429 always do.
_PASSING = {
    "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "RequestTimeTooSkewed",
    "SlowDown", "ThrottlingException", "TooManyRequests",
}  # fmt: skip
#: Codes of credentials that have expired.
EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
#: Codes that some servers send with 404 although it is not the key that is missing.
_NOT_THE_KEY = {"NoSuchBucket", "InvalidAccessKeyId", "XAdminUserNotFound"}
_REMEDIES = {
    "NoSuchBucket": "check its name, the endpoint and the region",
    "InvalidAccessKeyId": "check the access key, and that it is this endpoint's",
    "XAdminUserNotFound": "check the access key, and that it is this endpoint's",  # versitygw
    "SignatureDoesNotMatch": "check the secret key, and that no proxy rewrites requests",
    "InvalidToken": "get new credentials",
    "InvalidObjectState": "the object is archived: restore it first",
    "InvalidBucketName": "check the bucket's name",
}
#: How OpenSSL reports that the answer is not TLS.
_PLAIN_ANSWERS = {
    "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE", "WRONG_VERSION_NUMBER",
}  # fmt: skip
#: The right that an operation needs, and a server may deny.
_RIGHTS = {
    "list": "s3:ListBucket on the bucket",
    "put": "s3:PutObject on the key",
    "delete": "s3:DeleteObject on the key",
}
_RIGHT_TO_READ = (
    "s3:GetObject on the key and s3:ListBucket on the bucket (without the latter, a key that is "
    "not there is forbidden too)"
)
_RETRY_AFTER_MAX_S = 300.0


class S3Answer(Struct, frozen=True):
    """A whole answer: ``headers`` by lower-case names; the body, or its ``parts`` as they came."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    parts: Sequence[bytes] = ()

    @property
    def size(self) -> int:
        """The bytes of the body."""
        return len(self.body) + sum(map(len, self.parts))


class Unfit(Exception):
    """An answer that does not fit the request: too short, of another range, not XML."""


def error_code(answer: S3Answer) -> str:
    """Return the code of a refusal; empty if the answer has none."""
    found = _CODE.search(answer.body)
    return found[1].decode("ascii", "replace") if found else ""


def is_about_more_than_the_key(answer: S3Answer) -> bool:
    """Return whether "not found" means the bucket or the account: some servers send 404 for it."""
    return answer.status == 404 and error_code(answer) in _NOT_THE_KEY


def region_of(answer: S3Answer) -> str | None:
    """Return the bucket's region, if a refusal says that it is another one."""
    if answer.status not in (301, 307, 400):
        return None
    header = answer.headers.get("x-amz-bucket-region", "")
    if _REGION_NAME.fullmatch(header):  # it becomes a part of a host's name
        return header
    found = _REGION.search(answer.body)
    return found[1].decode() if found else None


def worth_retrying(answer: S3Answer) -> bool:
    """Return whether the same request may succeed a moment later."""
    if answer.status == 501:  # not implemented
        return False
    if answer.status == 429 or answer.status >= 500:
        return True
    return answer.status >= 400 and error_code(answer) in _PASSING


def retry_after_s(answer: S3Answer) -> float | None:
    """Return the server's Retry-After in seconds; a date is taken by the server's clock."""
    now = http_date(answer.headers.get("date", ""))
    text = answer.headers.get("retry-after")
    return parse_retry_after(text, _RETRY_AFTER_MAX_S if now is None else now, _RETRY_AFTER_MAX_S)


def refusal(answer: S3Answer, operation: str, bucket: str, key: str) -> TailerError:
    """Return the error for an answer that the caller can't use."""
    code = error_code(answer)
    if worth_retrying(answer):
        what = code or "no reason given"
        if code == "RequestTimeTooSkewed":
            date = printable(answer.headers.get("date", ""), 40)
            says = f", which says {date}" if date else ""
            what += f": this machine's clock differs from the server's{says}; set it right"
        return TransientError(
            f"s3://{bucket}/{key}: the server answered {answer.status} to {operation} ({what})",
            retry_after_s(answer),
        )
    table, path = f"s3://{bucket}", key or None
    if code == "NoSuchBucket":
        return TableError("the bucket does not exist", hint=_REMEDIES[code], table=table, path=path)
    if code in EXPIRED:
        return TableError("the credentials have expired", hint="renew them", table=table, path=path)
    found = _MESSAGE.search(answer.body)
    said = f"{code}: {found[1].decode('utf-8', 'replace')}" if found else code or "no reason given"
    if answer.status in (401, 403) and code not in _REMEDIES:
        right = _RIGHTS.get(operation, _RIGHT_TO_READ)
        hint = f"check the credentials, and grant {right}"
        return TableError(
            f"access denied to {operation} ({said})", hint=hint, table=table, path=path
        )
    if answer.status == 501 and operation == "put":
        return TableError(
            f"the server does not implement the conditions of {operation} ({said})",
            hint="keep this in a local folder, or on a server with conditional writes",
            table=table,
            path=path,
        )
    return TableError(
        f"the server refused {operation} with {answer.status} ({said})",
        hint=_REMEDIES.get(code, "check the endpoint, the region and the store's options"),
        table=table,
        path=path,
    )


def no_tls(e: aiohttp.ClientSSLError, table: str) -> TableError:
    """Return the error for a connection on which TLS could not begin."""
    at = f"{e.host}:{e.port}"
    if isinstance(e, aiohttp.ClientConnectorCertificateError):
        return TableError(
            f"the server's certificate is not trusted ({e})",
            hint="name the authority that signed it as ca_file",
            table=table,
        )
    if getattr(e.os_error, "reason", None) in _PLAIN_ANSWERS:
        return TableError(
            f"the server at {at} does not speak https",
            hint="write endpoint_url with http://, or with the port that speaks https",
            table=table,
        )
    return TableError(
        f"no secure connection to the server at {at} can be made ({e.os_error})",
        hint="check endpoint_url, its port, and the server's TLS settings",
        table=table,
    )


def not_reached(e: Exception) -> str:
    """Return why no connection came about, and the remedy; empty for another error."""
    if not isinstance(e, aiohttp.ClientConnectorError):
        return ""
    at = f"{e.host}:{e.port}"
    if isinstance(e, aiohttp.ClientConnectorDNSError):
        return f"(the name {e.host} is not known to this machine's DNS: check endpoint_url)"
    if isinstance(e.os_error, ConnectionRefusedError):
        return f"(nothing listens at {at}: check endpoint_url, and that the server runs)"
    return f"({at} can't be reached: {e.os_error.strerror or e.os_error}; check endpoint_url)"
