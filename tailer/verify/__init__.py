"""Verification of a table or a topic by its events: `tailer verify`."""
