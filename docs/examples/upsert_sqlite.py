"""Keep a copy of a table in SQLite: format `debezium` with a key, applied exactly once.

    python upsert_sqlite.py BOOTSTRAP_SERVERS TOPIC DATABASE [--once]

Rows and the offsets behind them are written in one transaction, so a crash neither loses nor
repeats anything. All values of a row are kept in one JSON column, under the record's key.
"""

import json
import sqlite3
import sys
from decimal import Decimal

from kafka import KafkaConsumer, TopicPartition

TABLES = """
CREATE TABLE IF NOT EXISTS copy (key TEXT PRIMARY KEY, row TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS offsets (partition INTEGER PRIMARY KEY, next INTEGER NOT NULL);
"""
UPSERT = "INSERT INTO copy VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET row = excluded.row"
ADVANCE = (
    "INSERT INTO offsets VALUES (?, ?) ON CONFLICT (partition) DO UPDATE SET next = excluded.next"
)


def apply(database: sqlite3.Connection, record: object) -> None:
    """Take over one record."""
    key = record.key.decode()
    if record.value is None:  # a tombstone, behind the delete
        database.execute("DELETE FROM copy WHERE key = ?", (key,))
        return
    event = json.loads(record.value, parse_float=Decimal)
    if event["after"] is None:
        database.execute("DELETE FROM copy WHERE key = ?", (key,))
    else:  # c, u, and r: a row of the initial snapshot
        database.execute(UPSERT, (key, json.dumps(event["after"], default=str)))


def main() -> None:
    bootstrap, topic, path = sys.argv[1:4]
    database = sqlite3.connect(path)
    database.executescript(TABLES)
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
    known = dict(database.execute("SELECT partition, next FROM offsets"))
    for place in places:
        consumer.seek(place, known.get(place.partition, 0))
    ends = consumer.end_offsets(places)
    once = "--once" in sys.argv
    while not once or any(consumer.position(place) < ends[place] for place in places):
        found = consumer.poll(timeout_ms=500)
        with database:  # one transaction
            for place, records in found.items():
                for record in records:
                    apply(database, record)
                database.execute(ADVANCE, (place.partition, consumer.position(place)))


if __name__ == "__main__":
    main()
