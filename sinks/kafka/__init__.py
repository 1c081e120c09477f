"""Kafka: exactly once for readers that read committed records, or at least once.

``sink`` is the sink itself, ``options`` are its options, ``topic_writer`` turns a batch of changes
into records in partitions, ``progress`` is a feed's progress, kept in Kafka together with the data.
``cluster`` queries the brokers, and ``client`` has what is kafka-python's.
"""
