"""Errors of obstore as this project's: what is missing, what is refused, and what may pass.

obstore says the server's answer, or what became of the request, only in its text. It leaves out
the URL where that is signed.
"""

from __future__ import annotations

import re

from obstore import exceptions

from tailer.errors import TableError, TransientError, printable

#: What obstore raises; an object that does not exist is Python's own error.
FAILURES = (exceptions.BaseError, FileNotFoundError)

_NO_CONTAINER = re.compile(r"ContainerNotFound|NoSuchBucket|FilesystemNotFound|specified bucket")
_STATUS = re.compile(r"status code: (\d{3})")
_CODE = re.compile(r"<Code>([^<\n]{1,100})|\"(?:code|reason|error)\": ?\"([^\"\n]{1,100})\"")
_MESSAGE = re.compile(
    r"<Message>([^<\n]{1,300})|\"(?:message|error_description)\": ?\"([^\"\n]{1,300})\""
)
#: Statuses of refusals that may pass; 416 is about the range alone.
_PASSING = ("404", "408", "409", "412", "416", "429")
#: Codes of S3's refusals that may pass.
_PASSING_CODES = {
    "ConditionalRequestConflict", "OperationAborted", "RequestTimeout", "RequestTimeTooSkewed",
    "SlowDown", "ThrottlingException", "TooManyRequests",
}  # fmt: skip
#: Codes of credentials that have ended.
_EXPIRED = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired"}
#: What is to be done about S3's codes. Some servers send the first two with 404.
_REMEDIES = {
    "InvalidAccessKeyId": "check the access key, and that it is this endpoint's",
    "XAdminUserNotFound": "check the access key, and that it is this endpoint's",  # versitygw
    "SignatureDoesNotMatch": "check the secret key, and that no proxy rewrites requests",
    "InvalidToken": "get new credentials",
    "InvalidObjectState": "the object is archived: restore it first",
    "InvalidBucketName": "check the bucket's name",
}
_NOT_THE_KEY = ("InvalidAccessKeyId", "XAdminUserNotFound")
#: The right that an operation needs on S3, and a server may deny.
_RIGHTS = {
    "list": "s3:ListBucket on the bucket",
    "put": "s3:PutObject on the key",
    "delete": "s3:DeleteObject on the key",
}
_RIGHT_TO_READ = (
    "s3:GetObject on the key and s3:ListBucket on the bucket (without the latter, a key that is "
    "not there is forbidden too)"
)
_NO_CREDENTIALS = "no credentials can be had for {} ({})"
_NAME_SOME = (
    "name some by the store's options or in the environment, or set anonymous = true for what is "
    "public"
)
_SERVER_TIME = re.compile(r"<ServerTime>([^<\n]{1,40})")
#: What became of a request without an answer, as reqwest says it.
_UNANSWERED = (
    (
        "dns error",
        "this machine's DNS does not know the server's name: check endpoint_url, or the account",
    ),
    ("kind: Timeout", "it took too long"),
    ("kind: Connect", "the server can't be reached: check endpoint_url, and the network"),
    ("operation timed out", "it took too long"),
)
#: Why TLS could not begin, as rustls says it, and the remedy. It does not heal by itself.
_NO_TLS = (
    (
        re.compile(r"InvalidCertificate\(\s*(\w+)"),
        "the server's certificate is not trusted",
        "name the file of the authority that signed it{}in the environment, as SSL_CERT_FILE",
    ),
    (
        re.compile(r"InvalidMessage\(\s*(InvalidContentType)"),
        "the server does not speak https",
        "write endpoint_url with http://, or with the port that speaks https",
    ),
)
#: What Azure says of times, beside its message. The rest has signatures in it.
_TIMES = re.compile(
    r"<AuthenticationErrorDetail>((?:Request date|Signature not valid in|Signed expiry)[^<]{1,300})"
)
#: Where a machine's identity is asked for.
_TOKEN = re.compile(r"token request|TokenRequest|IMDS|azure cli|metadata", re.IGNORECASE)
_AZ = re.compile(r"'az account get-access-token' command failed: ([^\n]+)")


def is_without_credentials(error: Exception) -> bool:
    """Return whether a request was not sent, because our own function gave no credentials."""
    # An answer of 401 is of this class too.
    is_theirs = isinstance(error, exceptions.UnauthenticatedError)
    return is_theirs and "credential provider: " in str(error).partition("\n")[0]


def is_refusal(error: Exception) -> bool:
    """Return whether a server has refused the credentials. Whether they have ended or may not do
    this, an answer without a body does not say."""
    code = _CODE.search(str(error))
    if code is None:
        return status_of(error) in ("400", "401", "403")
    return status_of(error) in ("401", "403") or code[1] in _EXPIRED


def status_of(error: Exception) -> str:
    """Return the status of the answer; "" without one."""
    found = _STATUS.search(str(error))
    return found[1] if found else ""


def translate_error(error: Exception, operation: str, address: str, location: str) -> Exception:
    """Return the error to raise for a request that failed. What is unknown may pass."""
    text, status = str(error), status_of(error)
    code = next(filter(None, found.groups()), "") if (found := _CODE.search(text)) else ""
    # A listing of what is not there is empty; so this is the whole container, or account.
    if _NO_CONTAINER.search(text) or (operation == "list" and status == "404"):
        what, more = "container", "and the account's"
        if address.startswith(("s3:", "gs:", "gcs:")):
            what, more = "bucket", "the endpoint and the region"
        return TableError(
            f"its {what} does not exist",
            table=address,
            hint=f"check the {what}'s name in the address, {more}",
        )
    is_key = isinstance(error, FileNotFoundError) and code not in _NOT_THE_KEY
    if is_key and operation != "put":
        return FileNotFoundError(location)
    place = f"{address}/{location}" if location and "://" not in location else location or address
    if isinstance(error, exceptions.PreconditionError):
        return TransientError(f"{place} was replaced while it was read")
    for sign, what, hint in _NO_TLS:
        if reason := sign.search(text):
            more = " as ca_file, or " if address.startswith("s3:") else " "
            return TableError(f"{what} ({reason[1]})", table=address, hint=hint.format(more))
    said = _describe_answer(text, status)
    no_token = _TOKEN.search(text.partition("Debug source")[0]) is not None
    lasting = status not in _PASSING or isinstance(error, FileNotFoundError)
    lasting = status.startswith("4") and lasting and code not in _PASSING_CODES
    if lasting or (status == "501" and operation == "put"):
        if no_token:
            what, hint = _NO_CREDENTIALS.format(operation, said), _NAME_SOME
        else:
            what, hint = _describe_refusal(operation, status, code, said, address)
        return TableError(what, table=address, path=location or None, hint=hint)
    if (az := _AZ.search(text)) is not None:
        return TransientError(f"{place}: no credentials can be had (az: {printable(az[1], 300)})")
    if no_token:
        return TransientError(
            f"{place}: {operation} needs credentials, none are among the store's options or in the "
            f"environment, and where the machine's are had there is no answer ({said})"
        )
    what = f"the server answered {status} to {operation}" if status else f"{operation} failed"
    if code == "RequestTimeTooSkewed":
        clock = _SERVER_TIME.search(text)
        says = f", which says {printable(clock[1], 40)}" if clock else ""
        said += f": this machine's clock differs from the server's{says}; set it right"
    return TransientError(f"{place}: {what} ({said})")


def _describe_refusal(
    operation: str, status: str, code: str, said: str, address: str
) -> tuple[str, str]:
    """Return what a server has refused for good, and what to do."""
    if code in _EXPIRED:
        return "the credentials have expired", "renew them"
    if status in ("401", "403") and code not in _REMEDIES:
        hint = (
            "check the credentials, when they end, what they may do with the container, the "
            "account's firewall, and this machine's clock"
        )
        if address.startswith("s3:"):
            hint = f"check the credentials, and grant {_RIGHTS.get(operation, _RIGHT_TO_READ)}"
        return f"access denied to {operation} ({said})", hint
    if status == "501":
        return f"the server does not implement the conditions of {operation} ({said})", (
            "keep this in a local folder, or on a server with conditional writes"
        )
    return f"the server refused {operation} with {status} ({said})", _REMEDIES.get(
        code, "check the address, the endpoint, the region and the store's options"
    )


def _describe_answer(text: str, status: str) -> str:
    """Return the server's code and message, or why there was no answer."""
    if status:
        parts = (pattern.search(text) for pattern in (_CODE, _MESSAGE, _TIMES))
        words = [
            printable(next(filter(None, part.groups())), 300).strip() for part in parts if part
        ]
        return ": ".join(words) or "no reason given"
    why = next((sentence for sign, sentence in _UNANSWERED if sign in text), None)
    line = text.partition("\n")[0]
    return why or printable(line.rpartition(" - ")[2], 200)
