"""Recipients' tokens: generated, hashed, kept in one file, and checked.

Only salted hashes are kept. A token has 256 random bits, so one round of SHA-256 is as good as a
slow hash: there is nothing to guess. The file is read again whenever it has changed, so that tokens
are added and revoked without a restart.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from tailer.errors import ConfigError
from tailer.files.durable import make_folder, make_private, open_private, sync_folder

_PREFIX = "dts"
_FORMAT = 1


class TokensUnusable(ConfigError):
    """The file of tokens, or its folder, can't be read or written."""


@dataclass(frozen=True, slots=True)
class RecipientToken:
    """One token as it is kept, without its secret. Times in epoch seconds; None: never."""

    recipient: str
    id: str
    salt: str
    hash: str
    created: int
    expires: int | None


class NewToken(NamedTuple):
    """A token and what its bearer sends, which is known only when it is made."""

    bearer: str
    token: RecipientToken


@dataclass(frozen=True, slots=True)
class Recipient:
    """The sender of a request, and the token that identified it."""

    name: str
    token_id: str


def _hash_secret(salt: str, secret: str) -> str:
    # A header may have bytes that are not text.
    return hashlib.sha256(f"{salt}:{secret}".encode(errors="surrogatepass")).hexdigest()


class RecipientStore:
    """The token file of a state folder. ``clock`` gives epoch seconds.

    All methods raise :class:`TokensUnusable` if the file or its folder can't be used.
    """

    def __init__(self, state: Path, clock: Callable[[], float]) -> None:
        self.path = state / "tokens.json"
        self._clock = clock
        self._seen: tuple[int, int, int] | None = None
        self._tokens: dict[str, RecipientToken] = {}

    def authenticate_bearer(self, bearer: str) -> Recipient | None:
        """Return the recipient whose token this is; None for a wrong, revoked or expired one.

        An unknown token takes as long as a valid one.
        """
        self._refresh_tokens()
        prefix, _, rest = bearer.partition("_")
        token_id, _, secret = rest.partition("_")
        token = self._tokens.get(token_id)
        kept = token.hash if token else "0" * 64
        good = hmac.compare_digest(_hash_secret(token.salt if token else "", secret), kept)
        if token is None or not good or prefix != _PREFIX:
            return None
        if token.expires is not None and self._clock() >= token.expires:
            return None
        return Recipient(token.recipient, token.id)

    def is_active(self, recipient: str) -> bool:
        """Return whether any token of the recipient is valid now."""
        self._refresh_tokens()
        now = self._clock()
        return any(
            t.recipient == recipient and (t.expires is None or now < t.expires)
            for t in self._tokens.values()
        )

    def list_tokens(self) -> list[RecipientToken]:
        """Return all tokens, the expired ones too."""
        self._refresh_tokens()
        return sorted(self._tokens.values(), key=lambda t: (t.recipient, t.created, t.id))

    def create_token(self, recipient: str, ttl_s: int | None) -> NewToken:
        """Create a token; its secret is returned only now.

        Older tokens stay valid until they expire or are revoked, so that a recipient can switch.
        """
        secret, salt = secrets.token_urlsafe(32), secrets.token_hex(16)
        now = int(self._clock())
        expires = None if ttl_s is None else now + ttl_s
        token = RecipientToken(
            recipient, secrets.token_hex(6), salt, _hash_secret(salt, secret), now, expires
        )  # fmt: skip
        with self._change_tokens() as tokens:
            tokens[token.id] = token
        return NewToken(f"{_PREFIX}_{token.id}_{secret}", token)

    def revoke_tokens(self, recipient: str, token_id: str | None) -> int:
        """Revoke one token of a recipient, or all of them; return their number."""
        with self._change_tokens() as tokens:
            gone = [
                t.id
                for t in tokens.values()
                if t.recipient == recipient and token_id in (None, t.id)
            ]
            for each in gone:
                del tokens[each]
        return len(gone)

    def _refresh_tokens(self) -> None:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            self._seen, self._tokens = None, {}
            return
        except OSError as e:
            raise self._make_unusable_error(e) from e
        make_private(self.path)
        seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        if seen != self._seen:
            self._tokens, self._seen = self._read_tokens(), seen

    def _read_tokens(self) -> dict[str, RecipientToken]:
        try:
            document = json.loads(self.path.read_bytes())
            if document["format"] != _FORMAT:
                raise TokensUnusable(f"{self.path} is of a format that is not known here")
            return {t["id"]: RecipientToken(**t) for t in document["tokens"]}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as e:
            raise TokensUnusable(f"{self.path} can't be read ({e})") from e

    def _make_unusable_error(self, e: OSError) -> TokensUnusable:
        return TokensUnusable(
            f"{self.path.parent} can't be used ({e.strerror}); share.state must be a folder that "
            "this user may write to"
        )

    @contextmanager
    def _change_tokens(self) -> Iterator[dict[str, RecipientToken]]:
        """Yield the tokens for a change by one process at a time.

        They are written whole or not at all.
        """
        try:
            make_folder(self.path.parent, private=True)
            file = open_private(self.path.parent / "tokens.lock", os.O_WRONLY | os.O_CREAT)
            with os.fdopen(file, "wb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                tokens = self._read_tokens()
                yield tokens
                self._write_tokens(tokens)
        except OSError as e:
            raise self._make_unusable_error(e) from e
        self._refresh_tokens()

    def _write_tokens(self, tokens: dict[str, RecipientToken]) -> None:
        new = self.path.with_suffix(".new")
        text = {"format": _FORMAT, "tokens": [asdict(t) for t in tokens.values()]}
        handle = open_private(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        with os.fdopen(handle, "w") as file:
            json.dump(text, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        new.replace(self.path)
        sync_folder(self.path.parent)
