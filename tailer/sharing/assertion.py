"""Assertions signed by a private key (RFC 7523): they obtain tokens without a shared secret.

The claims are those of the official client: the token endpoint's issuer as the audience, the client
as the issuer, a lifetime of two minutes. PyJWT, an extra, signs them.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

from tailer.errors import ConfigError, healing, unreadable

#: How long an assertion is valid, in seconds: enough for one request and two clocks.
LIFE_S = 120
#: By RFC 7518: RSA with PKCS #1 or PSS, and the elliptic curves.
ALGORITHMS = tuple(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512))


def sign_assertion(
    key_file: Path, algorithm: str, key_id: str | None, claims: dict[str, Any], now: float
) -> str:
    """Return a JWT with these claims, its times and an id, signed by the key of a PEM file.

    ``now`` is in epoch seconds. Raises :class:`ConfigError` for a key that can't be used, and if
    PyJWT is not installed.
    """
    try:
        import jwt
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise ConfigError(
            "a profile with a private key needs the packages PyJWT and cryptography; "
            "install delta-tailer[sharing]"
        ) from None
    try:
        with healing(f"the private key {key_file} can't be read"):
            content = key_file.read_bytes()
        key: Any = load_pem_private_key(content, password=None)
    except OSError as e:
        raise unreadable(f"the private key {key_file}", key_file, e) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not the library's message, which may quote the file's content.
        raise ConfigError(
            f"{key_file} is not a private key in PEM form without a password"
        ) from None
    times = {"iat": int(now), "exp": int(now) + LIFE_S, "jti": str(uuid.uuid4())}
    try:
        return jwt.encode(claims | times, key, algorithm, {"kid": key_id} if key_id else None)
    except (TypeError, jwt.InvalidKeyError):
        raise ConfigError(
            f"the private key {key_file} is of another kind than {algorithm} needs"
        ) from None
