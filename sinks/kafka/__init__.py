"""Kafka: exactly once for readers that read committed records, or at least once.

``sink`` is the sink itself, ``options`` what the configuration may say, ``topic_writer`` the way
from a batch of changes to records in partitions, ``progress`` how far a feed has come, kept in
Kafka together with the data. ``cluster`` asks the brokers; ``driver`` is what a client library must
do, ``kafka_python`` and ``librdkafka`` do it.
"""
