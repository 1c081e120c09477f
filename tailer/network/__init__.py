"""Talking to servers: pauses between attempts, answers read within bounds, and errors of
servers that no connection reaches."""
