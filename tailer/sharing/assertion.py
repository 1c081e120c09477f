"""Assertions that a private key signs (RFC 7523): what buys tokens without a shared secret.

The claims are those of the official client: the token endpoint's issuer as the audience, the client
as the issuer, two minutes of life. The signatures are made by ``cryptography``, an extra.
"""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailer.errors import ConfigError, healing

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["ALGORITHMS", "LIFE_S", "signed_assertion"]

#: How long an assertion is good for, in seconds: the time of one request, and of two clocks.
LIFE_S = 120
#: By RFC 7518: RSA with PKCS #1 or PSS, and the elliptic curves.
ALGORITHMS = tuple(f"{family}{bits}" for family in ("RS", "PS", "ES") for bits in (256, 384, 512))
_CURVES = {"256": "secp256r1", "384": "secp384r1", "512": "secp521r1"}


def signed_assertion(
    key_file: Path, algorithm: str, key_id: str | None, claims: dict[str, Any], now: float
) -> str:
    """A JWT with these claims and its own times and id, signed by the key of a PEM file.

    ``now`` in epoch seconds. Raises :class:`ConfigError` for a key that can't be used, and where
    ``cryptography`` is not installed.
    """
    header = {"alg": algorithm, "typ": "JWT"} | ({"kid": key_id} if key_id else {})
    times = {"iat": int(now), "exp": int(now) + LIFE_S, "jti": str(uuid.uuid4())}
    signed = f"{_part(header)}.{_part(claims | times)}"
    return f"{signed}.{_base64(_signature(key_file, algorithm, signed.encode()))}"


def _part(value: dict[str, Any]) -> str:
    return _base64(json.dumps(value, separators=(",", ":")).encode())


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _signature(key_file: Path, algorithm: str, data: bytes) -> bytes:
    try:
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric import ec, rsa
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError:
        raise ConfigError(
            "a profile with a private key needs the package cryptography; "
            "install delta-tailer[sharing]"
        ) from None
    try:
        with healing(f"the private key {key_file} can't be read"):
            content = key_file.read_bytes()
        key = load_pem_private_key(content, password=None)
    except OSError as e:
        raise ConfigError(f"the private key {key_file} can't be read ({e.strerror})") from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # Not the library's words, which may be about what is in the file.
        raise ConfigError(
            f"{key_file} is not a private key in PEM form without a password"
        ) from None
    family, bits = algorithm[:2], algorithm[2:]
    if family == "ES" and isinstance(key, ec.EllipticCurvePrivateKey):
        if key.curve.name == _CURVES[bits]:
            return _by_curve(key, bits, data)
    elif family != "ES" and isinstance(key, rsa.RSAPrivateKey):
        from cryptography.hazmat.primitives.asymmetric import padding

        digest = _digest(bits)
        filled: Any = padding.PKCS1v15()
        if family == "PS":
            filled = padding.PSS(padding.MGF1(digest), salt_length=digest.digest_size)
        signature: bytes = key.sign(data, filled, digest)
        return signature
    raise ConfigError(f"the private key {key_file} is of another kind than {algorithm} needs")


def _digest(bits: str) -> Any:
    from cryptography.hazmat.primitives import hashes

    kinds: dict[str, Any] = {"256": hashes.SHA256, "384": hashes.SHA384, "512": hashes.SHA512}
    return kinds[bits]()


def _by_curve(key: EllipticCurvePrivateKey, bits: str, data: bytes) -> bytes:
    """The two numbers of the signature side by side, as JWTs have them (RFC 7518, 3.4)."""
    from cryptography.hazmat.primitives.asymmetric.ec import ECDSA
    from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

    size = (key.curve.key_size + 7) // 8
    numbers: tuple[int, int] = decode_dss_signature(key.sign(data, ECDSA(_digest(bits))))
    return b"".join(number.to_bytes(size, "big") for number in numbers)
