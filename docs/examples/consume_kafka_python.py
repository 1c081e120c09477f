"""Print the changes of a table: format `rows`, read with kafka-python.

    python consume_kafka_python.py BOOTSTRAP_SERVERS TOPIC [--once]

Without `--once` it goes on for ever; with it, it ends at the topic's present end.
"""

import json
import sys
from decimal import Decimal

from kafka import KafkaConsumer, TopicPartition


def main() -> None:
    bootstrap, topic = sys.argv[1:3]
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",  # what an aborted transaction left is never shown
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        group_id=None,
    )
    numbers = consumer.partitions_for_topic(topic)
    if not numbers:
        sys.exit(f"there is no topic {topic} at {bootstrap}")
    places = [TopicPartition(topic, number) for number in numbers]
    consumer.assign(places)
    consumer.seek_to_beginning(*places)
    ends = consumer.end_offsets(places)
    once = "--once" in sys.argv
    while not once or any(consumer.position(place) < ends[place] for place in places):
        for records in consumer.poll(timeout_ms=500).values():
            for record in records:
                if record.value is None:
                    continue  # a tombstone
                # Decimals and 64-bit integers keep all their digits.
                row = json.loads(record.value, parse_float=Decimal)
                kind, version = row.pop("_change_type"), row.pop("_commit_version")
                print(version, kind, {k: v for k, v in row.items() if not k.startswith("_")})


if __name__ == "__main__":
    main()
