"""How the sink authenticates to the brokers, and they to it: SASL and TLS.

``repr`` never contains secrets. TLS verifies the broker's certificate and its name by default.
"""

from __future__ import annotations

import json
import math
import time
import urllib.error
import urllib.parse
import urllib.request
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tailer.errors import ConfigError
from tailer.secrets import keep_pair, keep_secrets
from tailer.secrets.urls import UrlError, parse_url
from tailer.setting_fields import declared, settings_of
from tailer.settings import Setting

MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER")

_OAUTH = "sasl_oauthbearer_"
#: A token is renewed when this fraction of its lifetime is over.
_RENEW_AT = 0.8
_TOKEN_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Security:
    """The options for authentication and encryption. Paths are absolute or None."""

    # fmt: off
    security_protocol: str = declared(Setting(
        "text", "PLAINTEXT", "`SSL` encrypts the connection (TLS); `SASL` logs in.",
        choices=("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"),
    ))
    sasl_mechanism: str = declared(Setting(
        "text", "", "Login mechanism.", form=f"one of {', '.join(MECHANISMS)}",
        elsewhere=("sasl_mechanisms",),
    ))
    sasl_username: str = declared(Setting(
        "text", "", "User name for PLAIN and SCRAM.", elsewhere=("sasl_plain_username",),
    ))
    sasl_password: str = declared(Setting(
        "text", "", "Password of the user.", elsewhere=("sasl_plain_password",), secret=True,
    ))
    sasl_oauthbearer_token: str = declared(Setting(
        "text", "", "Token for OAUTHBEARER.", secret=True, advanced=True,
    ))
    sasl_oauthbearer_token_endpoint_url: str = declared(Setting(
        "text", "", "Endpoint that issues OAUTHBEARER tokens for the client id and secret.",
        form="an https:// URL", advanced=True,
    ))
    sasl_oauthbearer_client_id: str = declared(Setting(
        "text", "", "Client id for tokens.", advanced=True,
    ))
    sasl_oauthbearer_client_secret: str = declared(Setting(
        "text", "", "Client secret for tokens.", secret=True, advanced=True,
    ))
    sasl_oauthbearer_scope: str = declared(Setting("text", "", "Scope of tokens.", advanced=True))
    ssl_cafile: str = declared(Setting(
        "text", "", "PEM file of the trusted authorities, relative to the configuration file.",
        unset="the system's authorities", elsewhere=("ssl_ca_location",),
    ))
    ssl_certfile: str = declared(Setting(
        "text", "", "PEM file of the client's certificate.",
        elsewhere=("ssl_certificate_location",),
        advanced=True,
    ))
    ssl_keyfile: str = declared(Setting(
        "text", "", "PEM file of the client's key.", elsewhere=("ssl_key_location",),
        advanced=True,
    ))
    ssl_password: str = declared(Setting(
        "text", "", "Password of `ssl_keyfile`.", elsewhere=("ssl_key_password",), secret=True,
        advanced=True,
    ))
    ssl_check_hostname: bool = declared(Setting(
        "flag", True, "Require that the certificate match the broker's host name.",
        advanced=True,
    ))
    # fmt: on

    @classmethod
    def from_options(cls, taken: Mapping[str, Any], folder: Path) -> Security:
        """Return checked options; files are relative to ``folder`` and must exist.

        Raises :class:`ConfigError` naming the key.
        """
        values = dict(taken)
        for key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile"):
            if values[key]:
                values[key] = str(folder / values[key])
                if not Path(values[key]).is_file():
                    raise ConfigError(f"option {key!r} of sink 'kafka': there is no {values[key]}")
        security = cls(**values)
        security._check()
        return security

    @property
    def sasl(self) -> bool:
        """Return whether the client logs in."""
        return self.security_protocol.startswith("SASL_")

    @property
    def tls(self) -> bool:
        """Return whether connections are encrypted."""
        return self.security_protocol.endswith("SSL")

    def _check(self) -> None:
        given = [key for key in settings_of(Security) if getattr(self, key) not in ("", True)]
        if not self.sasl and any(key.startswith("sasl_") for key in given):
            raise ConfigError(
                "options sasl_... of sink 'kafka' need security_protocol SASL_SSL (or "
                f"SASL_PLAINTEXT), and it is {self.security_protocol}"
            )
        if not self.tls and any(key.startswith("ssl_") for key in given):
            raise ConfigError(
                "options ssl_... of sink 'kafka' need security_protocol SSL or SASL_SSL, and it is "
                f"{self.security_protocol}"
            )
        if bool(self.ssl_certfile) != bool(self.ssl_keyfile):
            raise ConfigError("ssl_certfile and ssl_keyfile of sink 'kafka' go together")
        if self.sasl:
            self._check_sasl()

    def _check_sasl(self) -> None:
        if self.sasl_mechanism not in MECHANISMS:
            raise ConfigError(
                f"option 'sasl_mechanism' of sink 'kafka' is {self.sasl_mechanism!r}, and must be "
                f"one of {', '.join(MECHANISMS)}"
            )
        if self.sasl_mechanism != "OAUTHBEARER":
            if not self.sasl_username or not self.sasl_password:
                raise ConfigError(
                    f"{self.sasl_mechanism} needs the options sasl_username and sasl_password"
                )
            return
        if self.sasl_oauthbearer_token:
            return
        url, names = self.sasl_oauthbearer_token_endpoint_url, ("client_id", "client_secret")
        if not url or not all(getattr(self, _OAUTH + name) for name in names):
            raise ConfigError(
                "OAUTHBEARER needs either sasl_oauthbearer_token or all of "
                "sasl_oauthbearer_token_endpoint_url, ..._client_id and ..._client_secret"
            )
        try:
            parsed = parse_url(url, ("https", "http"), login=False)
        except UrlError as e:
            raise ConfigError(f"sasl_oauthbearer_token_endpoint_url is not a URL: {e}") from None
        if parsed.scheme != "https" and parsed.host not in ("localhost", "127.0.0.1", "::1"):
            raise ConfigError(
                f"sasl_oauthbearer_token_endpoint_url begins with http://{parsed.host}: a secret "
                "is sent there, so it must be https"
            )


class OAuthTokens:
    """Tokens for OAUTHBEARER: one from the configuration, or by OAuth's client credentials grant
    (RFC 6749, 4.4), renewed before it ends. Blocking; the clients call it in their own threads."""

    def __init__(self, security: Security) -> None:
        self._security = security
        self._token = security.sasl_oauthbearer_token
        self._renew_at = float("inf") if self._token else 0.0

    def obtain_token(self) -> str:
        """Return a valid token. Raises ``OSError`` if the issuer refuses or is unavailable."""
        if time.time() >= self._renew_at:
            self._renew_token()
        return self._token

    def _renew_token(self) -> None:
        s = self._security
        keep_pair(s.sasl_oauthbearer_client_id, s.sasl_oauthbearer_client_secret)
        pair = (
            urllib.parse.quote(part, safe="")
            for part in (s.sasl_oauthbearer_client_id, s.sasl_oauthbearer_client_secret)
        )
        form = {"grant_type": "client_credentials"}
        if s.sasl_oauthbearer_scope:
            form["scope"] = s.sasl_oauthbearer_scope
        request = urllib.request.Request(  # noqa: S310  # its scheme is checked with the options
            s.sasl_oauthbearer_token_endpoint_url,
            urllib.parse.urlencode(form).encode(),
            {
                "Authorization": "Basic " + b64encode(":".join(pair).encode()).decode(),
                "Accept": "application/json",
            },
        )
        try:
            with urllib.request.build_opener(_NoRedirects).open(request, timeout=10) as answer:
                document = json.loads(answer.read(_TOKEN_BYTES_MAX))
            token, lifetime = str(document["access_token"]), float(document.get("expires_in", 300))
            if not 0 < lifetime < math.inf:
                raise ValueError(f"expires_in is {lifetime}")
        except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError) as e:
            if isinstance(e, urllib.error.HTTPError):
                e.close()  # it is an answer, and has a connection
            raise OSError(
                f"no token from {s.sasl_oauthbearer_token_endpoint_url}: {type(e).__name__}: {e}"
            ) from e
        keep_secrets([token])
        self._token, self._renew_at = token, time.time() + lifetime * _RENEW_AT


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A redirect is an error: urllib would send the secret to whomever it names."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""
