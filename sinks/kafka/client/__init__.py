"""Kafka's client library, with one interface."""
