"""What every client of kafka-python is created with, whether it writes, reads or queries."""

from __future__ import annotations

from selectors import DefaultSelector, SelectorKey
from typing import TYPE_CHECKING, Any

from kafka.net.sasl.oauth import AbstractTokenProvider

from sinks.kafka.client.security import OAuthTokens
from sinks.kafka.options import KafkaOptions

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike


class _Selector(DefaultSelector):
    """The standard selector, without a description of each socket that is not registered.

    kafka-python asks for it at each wait and drops the error, and to describe a socket takes two
    system calls: a twentieth of a feed's processor time.
    """

    def get_key(self, fileobj: FileDescriptorLike) -> SelectorKey:
        """Return the key of a file; raises ``KeyError`` if it is not registered."""
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        return super().get_key(fileobj if number < 0 else number)


def client_settings(options: KafkaOptions) -> dict[str, Any]:
    """Return the settings that every client of kafka-python gets."""
    security = options.security
    settings: dict[str, Any] = {
        "bootstrap_servers": [part.strip() for part in options.bootstrap_servers.split(",")],
        "client_id": options.client_id,
        "security_protocol": security.security_protocol,
        "request_timeout_ms": options.request_timeout_ms,
        "reconnect_backoff_ms": 50,
        "reconnect_backoff_max_ms": 1_000,
        "selector": _Selector,
    }
    if security.tls:
        settings["ssl_check_hostname"] = security.ssl_check_hostname
        for key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password"):
            if getattr(security, key):
                settings[key] = getattr(security, key)
    if security.sasl:
        settings["sasl_mechanism"] = security.sasl_mechanism
        if security.sasl_mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = _make_token_provider(options)
        else:
            settings["sasl_plain_username"] = security.sasl_username
            settings["sasl_plain_password"] = security.sasl_password
    return settings


def _make_token_provider(options: KafkaOptions) -> Any:
    tokens = OAuthTokens(options.security)

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
        def token(self) -> str:
            return tokens.obtain_token()

    return Provider()
