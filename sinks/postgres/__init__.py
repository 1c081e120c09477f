"""A PostgreSQL database with a copy of a table, or with its change events."""
