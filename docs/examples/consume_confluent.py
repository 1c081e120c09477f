"""Print what became of each row: format `debezium`, read with confluent-kafka in a group.

    python consume_confluent.py BOOTSTRAP_SERVERS TOPIC GROUP [--once]

The group's offsets are committed after the records are worked on: a crash repeats the last ones,
and `source.event_id` tells that they were seen.
"""

import json
import sys
from decimal import Decimal

from confluent_kafka import Consumer, KafkaError, KafkaException


def main() -> None:
    bootstrap, topic, group = sys.argv[1:4]
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    consumer.subscribe([topic])
    once, at_end = "--once" in sys.argv, set()
    try:
        while not (once and at_end and len(at_end) == len(consumer.assignment())):
            message = consumer.poll(1.0)
            if message is None:
                continue
            if message.error():
                if message.error().code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(message.error())
                at_end.add(message.partition())
                continue
            at_end.discard(message.partition())
            if message.value() is not None:  # null is a tombstone
                event = json.loads(message.value(), parse_float=Decimal)
                source = event["source"]
                print(source["commit_version"], event["op"], event["before"], event["after"])
            consumer.commit(message, asynchronous=False)
    finally:
        consumer.close()


if __name__ == "__main__":
    main()
