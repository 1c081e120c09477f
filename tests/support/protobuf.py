"""Protobuf by Google's own libraries: a schema's text compiled by protoc, its messages read."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet
from grpc_tools import protoc


@lru_cache(maxsize=512)
def message_class(schema: str) -> type[Message]:
    """The class of a file's first message."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "a.proto").write_text(schema)
        known, out = files("grpc_tools") / "_proto", Path(folder, "a.bin")
        status = protoc.main(
            ["protoc", f"-I{folder}", f"-I{known}", f"--descriptor_set_out={out}", "a.proto"]
        )
        assert status == 0, schema
        described = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes())
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    (file,) = described.file
    pool.Add(file)
    name = ".".join(filter(None, (file.package, file.message_type[0].name)))
    found: type[Message] = message_factory.GetMessageClass(pool.FindMessageTypeByName(name))
    return found


def read_message(schema: str, data: bytes) -> dict[str, Any]:
    """The fields of a message, None for those that are not there. Arrays and maps are lists, of
    values or pairs; a Timestamp is microseconds."""
    message = message_class(schema)()
    message.ParseFromString(data)
    found = _plain(message)
    assert isinstance(found, dict)
    return found


def _plain(message: Any) -> Any:
    fields = message.DESCRIPTOR.fields
    if message.DESCRIPTOR.full_name == "google.protobuf.Timestamp":
        assert 0 <= message.nanos < 10**9
        return message.seconds * 1_000_000 + message.nanos // 1000
    assert not len(UnknownFieldSet(message))
    found: dict[str, Any] = {}
    for field in fields:
        value = getattr(message, field.name)
        if field.is_repeated:
            items = [_plain(item) for item in value]
            if field.name == "element":
                return [item["value"] for item in items]
            return [(item["key"], item["value"]) for item in items]
        if not message.HasField(field.name):
            found[field.name] = None
        else:
            found[field.name] = _plain(value) if field.type == field.TYPE_MESSAGE else value
    return found
