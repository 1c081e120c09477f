"""What the sink uses of kafka-python beneath its public API, by name.

A release that moves one of these fails here, and says which; beside the code that uses it stands
when that code can go ("Remove when").
"""

from __future__ import annotations

import ast
import inspect
import re
import selectors
import socket
from pkgutil import resolve_name

import kafka
import pytest

from sinks.kafka.client import settings as client
from tests.support.source import called, python_files

#: By class or module, the names that are used of it.
INTERNALS = {
    "kafka.producer.kafka:KafkaProducer": ("_accumulator", "_sender", "_transaction_manager"),
    "kafka.producer.record_accumulator:RecordAccumulator": ("_batches", "_incomplete", "_tp_lock"),
    "kafka.producer.sender:Sender": ("force_close", "wakeup"),
    "kafka.producer.transaction_manager:TransactionManager": (
        "_supports_epoch_bump", "begin_commit", "is_transactional",
        "maybe_add_partition_to_transaction",
    ),
    "kafka.record.memory_records:MemoryRecordsBuilder": ("_builder", "_next_offset"),
    "kafka.record.default_records:DefaultRecordBatchBuilder": (
        "_buffer", "_first_timestamp", "_last_offset", "_max_timestamp", "_num_records",
    ),
    "kafka.admin.client:KafkaAdminClient": ("_manager",),
    "kafka.admin._partitions:PartitionAdminMixin": ("_async_get_leader_for_partitions",),
    "kafka.admin._transactions:TransactionsAdminMixin": (
        "_abort_transaction_process_response", "_abort_transaction_request",
    ),
    "kafka.cluster:ClusterMetadata": ("_coordinators",),
    "kafka.net.compat:KafkaNetClient": ("_manager", "_net"),
    "kafka.net.inet:KafkaNetSocket": ("register_class", "sock_connect"),
    "kafka.net.manager:KafkaConnectionManager": ("_build_transport", "cluster"),
    "kafka.net.selector:NetworkSelector": ("_io_thread",),
    "kafka.net.transport:KafkaTCPTransport": ("_sock", "_sock_recv"),
}  # fmt: skip
NAMES = [(owner, name) for owner, names in INTERNALS.items() for name in names]


@pytest.mark.parametrize(("owner", "name"), NAMES)
def test_kafka_python_still_has(owner: str, name: str) -> None:
    source = inspect.getsource(resolve_name(owner))
    assert re.search(rf"\b(self\.|def ){name}\b", source), (
        f"kafka-python {kafka.__version__} has no {name} in {owner}, which "
        f"{', '.join(sorted(_private_names().get(name, {'sinks/kafka'})))} uses"
    )


def test_every_private_name_that_is_used_is_listed() -> None:
    assert _private_names().keys() - {name for _, name in NAMES} == set()


def test_the_selector_knows_what_is_registered() -> None:
    one, other = socket.socketpair()
    with client._Selector() as selector, one, other:
        selector.register(one, selectors.EVENT_READ, "data")
        assert selector.get_key(one) == selector.get_key(one.fileno())
        assert selector.get_key(one).data == "data"
        with pytest.raises(KeyError) as unknown:
            selector.get_key(other)
        assert "socket" not in str(unknown.value)
        one.close()
        assert selector.get_key(one).data == "data"  # until it is unregistered
        other.close()
        with pytest.raises(ValueError, match="file descriptor"):
            selector.get_key(other)


def _private_names() -> dict[str, set[str]]:
    """The private names of other objects that the sink's files use, and the files."""
    found: dict[str, set[str]] = {}
    for file in python_files("sinks/kafka"):
        tree = ast.parse(file.text)
        own = {n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)}
        for node in ast.walk(tree):
            name = _used(node)
            if name.startswith("_") and not name.startswith("__") and name not in own:
                found.setdefault(name, set()).add(str(file.path))
    return found


def _used(node: ast.AST) -> str:
    match node:
        case ast.Attribute(value=ast.Name(id="self" | "cls")):
            return ""
        case ast.Attribute(value=ast.Call() as call) if called(call) == "super":
            return ""
        case ast.Attribute(attr=name):
            return name
        case ast.Call(
            func=ast.Name(id="getattr" | "hasattr"), args=[_, ast.Constant(value=name), *_]
        ):
            return str(name)
    return ""
