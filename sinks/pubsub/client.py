"""A connection to Pub/Sub: gRPC's own client, with the messages that Google publishes.

Google's client on top of it is not used: it wraps each message a second time, repeats requests by
rules of its own, and starts a thread for the credentials of each one.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import anyio
import anyio.lowlevel
import anyio.to_thread
import google.auth
import grpc.aio
from google.auth.credentials import TokenState
from google.auth.transport.requests import Request
from google.iam.v1.iam_policy_pb2 import TestIamPermissionsRequest, TestIamPermissionsResponse
from google.oauth2 import service_account
from google.protobuf.message import DecodeError
from google.pubsub_v1 import types
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tailer.errors import ConfigError, TailerError, TransientError

RpcError = grpc.aio.AioRpcError
_SCOPES = ("https://www.googleapis.com/auth/pubsub",)
_DETAILS = "grpc-status-details-bin"
_PUBLISH = "pubsub.topics.publish"
#: Requests are repeated by the sink alone, and a connection that is silent is found to be dead; one
#: that failed is made again as soon as the sink asks for it.
_OPTIONS = (
    ("grpc.enable_retries", 0), ("grpc.service_config_disable_resolution", 1),
    ("grpc.use_local_subchannel_pool", 1), ("grpc.keepalive_time_ms", 30_000),
    ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 5000),
    ("grpc.max_send_message_length", -1),
    # What an error says beside its code; a longer one would be taken for a quota.
    ("grpc.max_metadata_size", 4 * 1024 * 1024),
    ("grpc.absolute_max_metadata_size", 8 * 1024 * 1024),
)  # fmt: skip
_REQUEST, _MESSAGE = types.PublishRequest.pb(), types.PubsubMessage.pb()


#: Answers for a token that stay what they are; what is not here may pass.
_DENIED = re.compile(r"invalid_grant|invalid_client|unauthorized_client|invalid_scope")
#: How much of what others say is shown.
SHOWN = 500


class _TokenRequest(Request):
    """How google-auth asks for tokens, with a time-out of ours."""

    def __init__(self, timeout_s: float) -> None:
        super().__init__()
        self._timeout_s = timeout_s

    def __call__(self, *given: Any, **more: Any) -> Any:
        ask: Any = super().__call__
        return ask(*given, **{**more, "timeout": self._timeout_s})


class Connection:
    """A connection to the server at ``address`` (host and port) for one topic. Requests are signed
    after :meth:`log_in`. All methods raise :data:`RpcError`, and :class:`TailerError` for want of a
    token."""

    def __init__(self, address: str, topic: str, timeout_s: float, *, tls: bool) -> None:
        if tls:
            trust = grpc.ssl_channel_credentials()
            self._channel = grpc.aio.secure_channel(address, trust, options=_OPTIONS)
        else:
            self._channel = grpc.aio.insecure_channel(address, options=_OPTIONS)
        publisher, policy = "/google.pubsub.v1.Publisher", "/google.iam.v1.IAMPolicy"
        self._publish = self._make_call(
            f"{publisher}/Publish", _REQUEST, types.PublishResponse.pb()
        )
        self._get_topic = self._make_call(
            f"{publisher}/GetTopic", types.GetTopicRequest.pb(), types.Topic.pb()
        )
        self._test_permissions = self._make_call(
            f"{policy}/TestIamPermissions", TestIamPermissionsRequest, TestIamPermissionsResponse
        )
        self._topic = topic
        self._timeout_s = timeout_s
        self._account: Any = None
        self._one_at_a_time = anyio.Lock()
        self._renewals = 0
        self._not_renewed: TailerError | None = None

    def _make_call(self, path: str, request: Any, answer: Any) -> Any:
        # Bytes: gRPC would log what it can't read, with a traceback, and give None.
        call = self._channel.unary_unary(path, request_serializer=request.SerializeToString)
        return call, answer.FromString

    async def log_in(self, file: Path | None) -> None:
        """Find who signs: a service account's file, or what Google's tools find. Raises
        :class:`ConfigError`."""

        def find() -> Any:
            if file is None:
                try:
                    return google.auth.default(scopes=_SCOPES)[0]
                except Exception as e:
                    raise ConfigError(f"Pub/Sub: no account was found ({_say(e)})") from e
            account: Any = service_account.Credentials
            try:
                return account.from_service_account_file(str(file), scopes=_SCOPES)
            except Exception as e:
                raise ConfigError(f"{file} is no file of a service account ({_say(e)})") from e

        self._account = await anyio.to_thread.run_sync(find, abandon_on_cancel=True)

    async def publish(self, ids: Sequence[str], values: Sequence[bytes], key: str) -> int:
        """Publish messages of one ordering key, or of none; return how many have a receipt."""
        messages = [
            _MESSAGE(data=value, attributes={"event_id": event_id}, ordering_key=key)
            for event_id, value in zip(ids, values, strict=True)
        ]
        request = _REQUEST(topic=self._topic, messages=messages)
        return len((await self._ask(self._publish, "topic", request)).message_ids)

    async def may_publish(self) -> bool:
        """Return whether the account may publish to the topic; false also if there is none."""
        request = TestIamPermissionsRequest(resource=self._topic, permissions=[_PUBLISH])
        answer = await self._ask(self._test_permissions, "resource", request)
        return _PUBLISH in answer.permissions

    async def find_topic(self) -> None:
        """Ask for the topic, for the error that says that it is missing."""
        await self._ask(self._get_topic, "topic", types.GetTopicRequest.pb()(topic=self._topic))

    async def _ask(self, call: Any, routed: str, request: Any) -> Any:
        # The service routes a request by this header.
        route = ("x-goog-request-params", f"{routed}={quote(self._topic)}")
        ask, read = call
        try:
            try:
                headers = [route, *await self._sign()]
                return read(await ask(request, timeout=self._timeout_s, metadata=headers))
            except RpcError as e:
                if self._account is None or e.code() is not grpc.StatusCode.UNAUTHENTICATED:
                    raise
            # A clock that is wrong, or a token that was taken back: another one may do.
            headers = [route, *await self._sign(anew=True)]
            return read(await ask(request, timeout=self._timeout_s, metadata=headers))
        except DecodeError as e:
            raise TransientError(f"Pub/Sub: an answer that can't be read ({e})") from e
        except asyncio.CancelledError:
            # gRPC's does not say which scope was cancelled; that scope would not know it again.
            await anyio.lowlevel.checkpoint()
            raise

    async def _sign(self, *, anew: bool = False) -> list[tuple[str, str]]:
        """Return the headers that say who asks, with a token that is renewed in time, or ``anew``.
        Raises :class:`TransientError`, or :class:`ConfigError` for an account that gets none."""
        if self._account is None:
            return []
        if anew or not self._account.valid:
            await self._renew_token()
        headers: dict[str, str] = {}
        self._account.apply(headers)
        return [(name.lower(), value) for name, value in headers.items()]

    async def _renew_token(self) -> None:
        """Renew the token once for all that wait for it."""
        begun = self._renewals
        async with self._one_at_a_time:
            if self._renewals == begun:
                renew = partial(self._account.refresh, _TokenRequest(self._timeout_s))
                self._not_renewed = None
                try:
                    await anyio.to_thread.run_sync(renew, abandon_on_cancel=True)
                except Exception as e:  # noqa: BLE001  # of any library that google-auth asks by
                    # A token is renewed minutes before its end.
                    if self._account.token_state is not TokenState.STALE:
                        self._not_renewed = _make_token_error(e)
                self._renewals += 1
        if self._not_renewed is not None:
            raise self._not_renewed

    async def aclose(self) -> None:
        """Close the connection; requests that are on their way end."""
        await self._channel.close()


def _say(e: Exception) -> str:
    """Return what an error of google-auth says; what else it has may be an answer with a token."""
    return " ".join(str(e.args[0] if e.args else type(e).__name__).split())[:SHOWN]


def _make_token_error(e: Exception) -> TailerError:
    kind = ConfigError if _DENIED.search(_say(e)) else TransientError
    return kind(f"Pub/Sub: there is no token for the account ({_say(e)})")


def find_reason(e: Any) -> str:
    """Return the reason that Pub/Sub gives for an error beside its status, or an empty text."""
    status, info = Status(), ErrorInfo()
    with suppress(DecodeError):
        # No dict of it: in some versions it is a mapping that has several values for a name.
        told = (value for name, value in e.trailing_metadata() or () if name == _DETAILS)
        status.ParseFromString(next(told, b""))
        for detail in status.details:
            detail.Unpack(info)  # where it is of this type
    return str(info.reason)
