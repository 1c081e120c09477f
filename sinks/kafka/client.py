"""What every client of kafka-python is created with, whether it writes, reads or queries."""

from __future__ import annotations

from typing import Any

from sinks.kafka.options import KafkaOptions

__all__ = ["client_settings"]


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
    }
    if security.tls:
        settings["ssl_check_hostname"] = security.ssl_check_hostname
        for key in ("ssl_cafile", "ssl_certfile", "ssl_keyfile", "ssl_password"):
            if getattr(security, key):
                settings[key] = getattr(security, key)
    if security.sasl:
        settings["sasl_mechanism"] = security.sasl_mechanism
        if security.sasl_mechanism == "OAUTHBEARER":
            settings["sasl_oauth_token_provider"] = _token_provider(options)
        else:
            settings["sasl_plain_username"] = security.sasl_username
            settings["sasl_plain_password"] = security.sasl_password
    return settings


def _token_provider(options: KafkaOptions) -> Any:
    from kafka.net.sasl.oauth import AbstractTokenProvider

    tokens = options.security.tokens()

    class Provider(AbstractTokenProvider):  # type: ignore[misc]  # kafka-python has no types
        def token(self) -> str:
            return tokens.token()

    return Provider()
