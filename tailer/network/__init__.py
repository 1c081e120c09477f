"""Talking to servers: pauses between attempts, answers read within bounds, and what is said of
servers that no connection reaches."""
