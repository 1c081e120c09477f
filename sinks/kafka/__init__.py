"""Kafka: exactly once for readers that read committed records, or at least once.

``feed_transactions`` decides what is written, and ``exactly_once`` is the loop that has it written
by a ``broker``; ``at_least_once`` is the simpler loop. ``progress`` is a feed's progress, kept in
Kafka together with the data, and ``settlement`` finds out how a transaction ended. ``topic_writer``
turns a batch of changes into records in partitions, ``cluster`` queries the brokers, and ``client``
has what is kafka-python's. ``sink`` is the sink itself, and ``options`` are its options.
"""
