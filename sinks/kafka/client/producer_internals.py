"""Access to a producer's internals, which kafka-python 3.0 keeps private.

Its ``send()`` takes one record at a time, about 35 us of Python for each, and it has no public way
to take more. Here whole record batches are put where ``send()`` puts its own: into the producer's
accumulator. After that, the producer handles them like any batch: sequence numbers, transactions,
compression, checksums, retries. Four smaller things are also here: a fenced producer that stays
fenced, a commit with a time-out, a close that does not wait for an unavailable broker, and the
marker of a committed transaction (the public call only writes those of aborted ones).

None of it is public, so :func:`has_known_internals` checks once, when a producer is created,
whether all is as expected; if not, the driver uses ``send()``. Each function says when it can be
removed; tests/kafka/test_internals.py names what a new release no longer has.
"""

from __future__ import annotations

import inspect
from typing import Any

import kafka
from kafka.admin import AbortTransactionSpec
from kafka.producer.producer_batch import ProducerBatch
from kafka.record.memory_records import MemoryRecordsBuilder
from kafka.structs import TopicPartition

from sinks.kafka.client.record_batch import BATCH_OVERHEAD

#: The releases whose internals match this file.
VERSIONS = ("3.0.",)

_MAGIC = 2
_JOIN_S = 5.0


def has_known_internals(producer: Any) -> bool:
    """Return whether this producer's internals match this file."""
    if not kafka.__version__.startswith(VERSIONS):
        return False
    try:
        accumulator, sender = producer._accumulator, producer._sender
        builder = MemoryRecordsBuilder(_MAGIC, 0, 1)
        inner = builder._builder
        batch = ProducerBatch(("topic", 0), builder)
        parameters = inspect.signature(MemoryRecordsBuilder.__init__).parameters
        return (
            list(parameters)[1:4] == ["magic", "compression_type", "batch_size"]
            and accumulator.config["message_version"] == _MAGIC
            and isinstance(accumulator.config["compression_attrs"], int)
            and isinstance(inner._buffer, bytearray)
            and len(inner._buffer) == BATCH_OVERHEAD
            and (inner._num_records, inner._last_offset, builder._next_offset) == (0, 0, 0)
            and inner._first_timestamp is inner._max_timestamp is None
            and batch.record_count == 0
            and not batch.produce_future.is_done
            and callable(accumulator._tp_lock)
            and callable(accumulator._incomplete.add)
            and hasattr(accumulator._batches, "default_factory")
            and callable(producer._transaction_manager.maybe_add_partition_to_transaction)
            and callable(producer._transaction_manager.begin_commit)
            and callable(sender.wakeup)
            and callable(sender.force_close)
        )
    except (AttributeError, KeyError, TypeError, AssertionError):
        return False


def append_batch(
    producer: Any,
    topic: str,
    partition: int,
    buffer: bytearray,
    count: int,
    timestamps_ms: tuple[int, int],
) -> Any:
    """Pass on the records of one batch: their bytes (format 2) after room for its header. From then
    on the buffer belongs to the producer. ``timestamps_ms`` are the first and the latest.

    Remove when the producer publicly takes encoded record batches.

    Returns the batch's future. When that is done, its ``value`` is (base offset, time of the
    log append, a function that gives the error of a record, or None).
    """
    place = TopicPartition(topic, partition)
    transactions, accumulator = producer._transaction_manager, producer._accumulator
    if transactions.is_transactional():
        transactions.maybe_add_partition_to_transaction(place)
    config = accumulator.config
    builder = MemoryRecordsBuilder(_MAGIC, config["compression_attrs"], config["batch_size"])
    inner = builder._builder
    inner._buffer = buffer
    inner._num_records, inner._last_offset = count, count - 1
    inner._first_timestamp, inner._max_timestamp = timestamps_ms
    builder._next_offset = count
    batch = ProducerBatch(place, builder)
    with accumulator._tp_lock(place):
        accumulator._batches[place].append(batch)
        accumulator._incomplete.add(batch)
    producer._sender.wakeup()
    return batch.produce_future


def stay_fenced(producer: Any) -> None:
    """Make a transactional producer fail for good when a broker says that its epoch is old.

    By itself it asks for a new epoch in the background, and when that is refused, for a new
    producer id: the daemon that has lost the transactional id takes it back from the newer one.
    On brokers without that request it fails for good, so it is made to believe in such a broker.
    Remove when InvalidProducerEpochError is fatal for transactional producers.
    """
    transactions = producer._transaction_manager
    if transactions is not None and hasattr(transactions, "_supports_epoch_bump"):
        transactions._supports_epoch_bump = lambda: False


def commit_within(producer: Any, seconds: float) -> bool:
    """Commit the transaction; False if its outcome is still unknown after ``seconds``.

    Remove when ``commit_transaction()`` takes a time-out.
    """
    result = producer._transaction_manager.begin_commit()
    producer._sender.wakeup()
    return bool(result.wait(timeout_ms=seconds * 1000))


def close_at_once(producer: Any) -> None:
    """Close a producer without waiting. Its own ``close(0)`` raises, and keeps running, while a
    batch is being sent. Remove when it does not."""
    producer._sender.force_close()
    producer._sender.join(_JOIN_S)
    producer.close(timeout=0)


def forget_coordinators(admin: Any) -> None:
    """Make an admin client look up coordinators again. Remove when it does so after a
    NotCoordinatorError: today it keeps the first answer."""
    cluster = getattr(getattr(admin, "_manager", None), "cluster", None)
    known = getattr(cluster, "_coordinators", None)
    if isinstance(known, dict):
        known.clear()


def write_marker(
    admin: Any,
    topic: str,
    partition: int,
    producer: tuple[int, int],
    coordinator_epoch: int,
    *,
    committed: bool,
) -> None:
    """Write the marker that ends a producer's (id, epoch) transaction in a partition.

    Remove when ``abort_transaction()`` can also write the marker of a commit.
    """
    place = TopicPartition(topic, partition)
    producer_id, epoch = producer
    asked = AbortTransactionSpec(place, producer_id, epoch, coordinator_epoch)

    async def write() -> None:
        leaders = await admin._async_get_leader_for_partitions([place])
        request = admin._abort_transaction_request(asked)
        request.markers[0].transaction_result = committed
        response = await admin._manager.send(request, node_id=next(iter(leaders)))
        admin._abort_transaction_process_response(response, asked)

    admin._manager.run(write)
