"""Proofs on a table or a topic of your own: `tailer verify`."""
