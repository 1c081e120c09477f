"""Reads of one table: what the command line and the functions of the package have in common."""
