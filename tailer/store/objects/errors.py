"""Errors of obstore as this project's: what is missing, what is refused, and what may pass.

obstore says the server's answer, or what became of the request, only in its text. It leaves out
the URL where that is signed.
"""

from __future__ import annotations

import re

from obstore import exceptions

from tailer.errors import TableError, TransientError, printable

__all__ = ["FAILURES", "is_refusal", "is_without_credentials", "translated"]

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
        "name the file of the authority that signed it in the environment, as SSL_CERT_FILE",
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
    status = _STATUS.search(str(error))
    return status is not None and status[1] in ("401", "403")


def translated(error: Exception, operation: str, address: str, location: str) -> Exception:
    """Return the error to raise for a request that failed. What is unknown may pass."""
    text = str(error)
    found = _STATUS.search(text)
    status = found[1] if found else ""
    # A listing of what is not there is empty; so this is the whole container, or account.
    if _NO_CONTAINER.search(text) or (operation == "list" and status == "404"):
        return TableError(
            "its container does not exist",
            table=address,
            hint="check the container's name in the address, and the account's",
        )
    if isinstance(error, FileNotFoundError):
        return FileNotFoundError(location)
    place = f"{address}/{location}" if location and "://" not in location else location or address
    if isinstance(error, exceptions.PreconditionError):
        return TransientError(f"{place} was replaced while it was read")
    for sign, what, hint in _NO_TLS:
        if reason := sign.search(text):
            return TableError(f"{what} ({reason[1]})", table=address, hint=hint)
    said = _said(text, status)
    no_token = _TOKEN.search(text.partition("Debug source")[0]) is not None
    if status.startswith("4") and status not in _PASSING:
        if no_token:
            what = f"no credentials can be had for {operation} ({said})"
            hint = (
                "name some by the store's options or in the environment, or set anonymous = true "
                "for what is public"
            )
        elif status in ("401", "403"):
            what = f"access denied to {operation} ({said})"
            hint = (
                "check the credentials, when they end, what they may do with the container, the "
                "account's firewall, and this machine's clock"
            )
        else:
            what = f"the server refused {operation} with {status} ({said})"
            hint = "check the address, and the store's options"
        return TableError(what, table=address, path=location or None, hint=hint)
    if (az := _AZ.search(text)) is not None:
        return TransientError(f"{place}: no credentials can be had (az: {printable(az[1], 300)})")
    if no_token:
        return TransientError(
            f"{place}: {operation} needs credentials, none are among the store's options or in the "
            f"environment, and where the machine's are had there is no answer ({said})"
        )
    what = f"the server answered {status} to {operation}" if status else f"{operation} failed"
    return TransientError(f"{place}: {what} ({said})")


def _said(text: str, status: str) -> str:
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
