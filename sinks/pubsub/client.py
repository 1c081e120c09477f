"""A connection to Pub/Sub: gRPC's own client, with the messages that Google publishes.

Google's client on top of it is not used: it wraps each message a second time, repeats requests by
rules of its own, and starts a thread for the credentials of each one.
"""

from __future__ import annotations

import asyncio
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
from google.auth.exceptions import GoogleAuthError
from google.auth.transport.requests import Request
from google.iam.v1.iam_policy_pb2 import TestIamPermissionsRequest, TestIamPermissionsResponse
from google.oauth2 import service_account
from google.protobuf.message import DecodeError
from google.pubsub_v1 import types
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from tailer.errors import TransientError

RpcError = grpc.aio.AioRpcError
AuthError: Any = GoogleAuthError
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
)  # fmt: skip
_REQUEST, _MESSAGE = types.PublishRequest.pb(), types.PubsubMessage.pb()


class Connection:
    """A connection to the server at ``address`` (host and port) for one topic. Requests are signed
    after :meth:`log_in`. All methods raise :data:`RpcError` and :data:`AuthError`."""

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

    def _make_call(self, path: str, request: Any, answer: Any) -> Any:
        # Bytes: gRPC would log what it can't read, with a traceback, and give None.
        call = self._channel.unary_unary(path, request_serializer=request.SerializeToString)
        return call, answer.FromString

    async def log_in(self, file: Path | None) -> None:
        """Find who signs: a service account's file, or what Google's tools find."""

        def find() -> Any:
            if file is None:
                return google.auth.default(scopes=_SCOPES)[0]
            account: Any = service_account.Credentials
            try:
                return account.from_service_account_file(str(file), scopes=_SCOPES)
            except (OSError, ValueError) as e:
                raise AuthError(f"{file} is no file of a service account ({e})") from e

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
        headers = [("x-goog-request-params", f"{routed}={quote(self._topic)}"), *await self._sign()]
        ask, read = call
        try:
            return read(await ask(request, timeout=self._timeout_s, metadata=headers))
        except DecodeError as e:
            raise TransientError(f"Pub/Sub: an answer that can't be read ({e})") from e
        except asyncio.CancelledError:
            # gRPC's does not say which scope was cancelled; that scope would not know it again.
            await anyio.lowlevel.checkpoint()
            raise

    async def _sign(self) -> list[tuple[str, str]]:
        """Return the headers that say who asks, with a token that is renewed in time."""
        if self._account is None:
            return []
        async with self._one_at_a_time:
            if not self._account.valid:
                renew = partial(self._account.refresh, partial(Request(), timeout=self._timeout_s))
                await anyio.to_thread.run_sync(renew, abandon_on_cancel=True)
        headers: dict[str, str] = {}
        self._account.apply(headers)
        return [(name.lower(), value) for name, value in headers.items()]

    async def aclose(self) -> None:
        """Close the connection; requests that are on their way end."""
        await self._channel.close()


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
