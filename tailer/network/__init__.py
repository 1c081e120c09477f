"""Talking to servers: pauses between attempts, and answers that are read within bounds."""
