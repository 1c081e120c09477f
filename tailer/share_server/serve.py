"""``tailer share``: the server as a process, and its recipients' tokens by command."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import re
import ssl
import sys
import time
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from tailer.errors import ConfigError, cannot_listen, meant
from tailer.process.logs import ConsoleFormatter
from tailer.process.signals import run_until_stopped
from tailer.share_server.audit import SUMMED_S
from tailer.share_server.config import ShareConfig, load_share_config
from tailer.share_server.recipients import RecipientStore
from tailer.share_server.signing import load_signing_key

if TYPE_CHECKING:
    from tailer.share_server.app import ShareServer

_TOKEN_ACTIONS = ("new", "revoke", "list")
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


async def run_share_command(arguments: argparse.Namespace) -> int:
    """Run `tailer share CONFIG` or `tailer share token ACTION CONFIG [RECIPIENT]`."""
    words: list[str] = arguments.words
    if words[0] != "token":
        if len(words) != 1:
            raise ConfigError("tailer share CONFIG.toml takes one file")
        return await run_server(load_share_config(Path(words[0])))
    if len(words) < 3 or words[1] not in _TOKEN_ACTIONS:
        action = words[1] if len(words) > 1 else ""
        amiss = f"no action {action!r}{meant(action, _TOKEN_ACTIONS)}"
        if action in ("", *_TOKEN_ACTIONS):
            amiss = "a CONFIG.toml missing" if action else "an action missing"
        raise ConfigError(
            f"share token: there is {amiss}; type share token new|revoke|list CONFIG.toml "
            "[RECIPIENT]"
        )
    recipient = words[3] if len(words) > 3 else None
    config = load_share_config(Path(words[2]))
    return manage_tokens(config, words[1], recipient, arguments.id, arguments.expires_in)


async def run_server(config: ShareConfig) -> int:
    """Serve until SIGINT or SIGTERM, reading the configuration again on SIGHUP; return 0."""
    from tailer.http_server.serving import serve_application
    from tailer.share_server.app import ShareServer

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(ConsoleFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    server = ShareServer(config, load_signing_key(config.key, config.state))
    try:
        context = _make_tls_context(config)
        async with AsyncExitStack() as stack:
            try:
                port = await stack.enter_async_context(
                    serve_application(
                        server.build_application(), config.address, server.make_bounds,
                        tls=context, cancels=True,
                    )
                )  # fmt: skip
            except OSError as e:
                raise cannot_listen(f"{config.path}: share.address", config.address, e) from e
            server.set_port(port)
            place = server.config.public_url
            if not config.leads_nowhere and not config.address[1]:
                place += f", listening on port {port}"
            _get_logger().info("sharing %s at %s", _describe_counts(config), place)
            await run_until_stopped(
                partial(_sum_up_regularly, server), partial(_reload_config, server, context)
            )
    finally:
        await server.aclose()
    return 0


async def _sum_up_regularly(server: ShareServer) -> None:
    while True:
        await anyio.sleep(SUMMED_S)
        server.audit.sum_up()


async def _reload_config(server: ShareServer, context: ssl.SSLContext | None) -> None:
    """Reopen the audit log and read the configuration again; an invalid one changes nothing."""
    logger = _get_logger()
    server.audit.reopen_file()
    old = server.config
    try:
        new = await anyio.to_thread.run_sync(load_share_config, old.path)
        new = new.with_port(old.address[1])
        _make_tls_context(new)  # raises for an unusable certificate, before anything is changed
    except ConfigError as e:
        logger.log(logging.ERROR, "configuration not taken: %s", e)
        return
    if context is not None and new.tls is not None:
        certificate, private_key = new.tls
        context.load_cert_chain(certificate, private_key)
    for key in ("address", "public_url", "state", "audit", "key"):
        if getattr(new, key) != getattr(old, key):
            name = {"key": "signing_key"}.get(key, key)
            logger.warning("share.%s has changed; that needs a restart", name)
    if (context is None) != (new.tls is None):
        logger.warning("share.tls_cert was added or removed; that needs a restart")
    await server.use_config(new)
    logger.info("configuration read again: sharing %s", _describe_counts(new))


def _get_logger() -> logging.Logger:
    return logging.getLogger("tailer.share")


def _describe_counts(config: ShareConfig) -> str:
    tables, recipients = config.catalog.list_tables(), config.grants.recipients
    return f"{len(tables)} tables with {len(recipients)} recipients"


def _make_tls_context(config: ShareConfig) -> ssl.SSLContext | None:
    if config.tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    certificate, key = config.tls
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as e:
        raise ConfigError(f"{config.path}: share.tls_cert and tls_key can't be used ({e})") from e
    return context


def manage_tokens(
    config: ShareConfig, action: str, recipient: str | None, token_id: str | None, ttl: str
) -> int:
    """Create, revoke or list tokens; return the exit status. A running server follows at once."""
    store = RecipientStore(config.state, time.time)
    if action == "list":
        for token in store.list_tokens():
            if recipient in (None, token.recipient):
                until = "never" if token.expires is None else _format_iso(token.expires)
                created = _format_iso(token.created)
                print(f"{token.recipient}\t{token.id}\tcreated {created}\texpires {until}")
        return 0
    if recipient is None:
        raise ConfigError(f"tailer share token {action} needs a RECIPIENT")
    if action == "revoke":
        gone = store.revoke_tokens(recipient, token_id)
        print(f"{gone} of the tokens of {recipient} revoked", file=sys.stderr)
        return 0 if gone else 1
    if recipient not in config.grants.recipients:
        known = ", ".join(config.grants.recipients) or "none"
        raise ConfigError(f"{config.path} has no recipients.{recipient}; it has {known}")
    if config.leads_nowhere:
        raise ConfigError(
            f"{config.path}: share.address has port 0; set share.public_url to the URL that "
            "recipients reach the server by"
        )
    bearer, token = store.create_token(recipient, _parse_seconds(ttl))
    profile = {
        "shareCredentialsVersion": 1,
        "endpoint": config.public_url,
        "bearerToken": bearer,
    }
    if token.expires is not None:
        profile["expirationTime"] = _format_iso(token.expires)
    print(json.dumps(profile, indent=2))
    return 0


def _parse_seconds(text: str) -> int | None:
    if text == "never":
        return None
    match = re.fullmatch(r"(\d{1,6})([smhd])", text)
    if match is None or not int(match[1]):
        raise ConfigError(f"--expires-in {text!r} must be like 90d, 12h, 30m or 45s, or never")
    return int(match[1]) * _UNITS_S[match[2]]


def _format_iso(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.0Z")
