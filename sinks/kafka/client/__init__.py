"""The client libraries of Kafka behind one interface."""
