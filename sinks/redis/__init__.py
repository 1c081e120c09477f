"""Redis: a stream of events, or a copy of a table."""
