"""Compare a topic with its table: format `rows`, read from the topic's beginning to its end.

    python verify_topic.py TABLE BOOTSTRAP_SERVERS TOPIC

The rows that came and the rows that left, added up, must be the rows of the table. They are counted
in memory. The status is 1 if some are missing or too many, which are printed.
"""

import json
import subprocess
import sys
from collections import Counter

from kafka import KafkaConsumer, TopicPartition


def text(row: dict[str, object]) -> str:
    return json.dumps({k: v for k, v in row.items() if not k.startswith("_")}, sort_keys=True)


def main() -> int:
    table, bootstrap, topic = sys.argv[1:4]
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
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
    rows: Counter[str] = Counter()
    version = 0
    while any(consumer.position(place) < ends[place] for place in places):
        for records in consumer.poll(timeout_ms=500).values():
            for record in records:
                if record.value is None:
                    continue  # a tombstone
                row = json.loads(record.value, parse_float=str)  # all digits of a decimal
                leaves = row["_change_type"] in ("delete", "update_preimage")
                rows[text(row)] += -1 if leaves else 1
                version = max(version, row["_commit_version"])
    command = [sys.executable, "-m", "tailer", "snapshot", table, "--to", str(version)]
    with subprocess.Popen([*command, "--output", "-"], stdout=subprocess.PIPE) as snapshot:  # noqa: S603
        for line in snapshot.stdout:
            rows[text(json.loads(line, parse_float=str))] -= 1
    wrong = {row: count for row, count in rows.items() if count}
    for row, count in wrong.items():
        print(f"{count:+d} {row}")
    print(f"version {version}: {'not exact' if wrong else 'exact'}")
    return 1 if wrong or snapshot.returncode else 0


if __name__ == "__main__":
    sys.exit(main())
