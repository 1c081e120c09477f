"""A DuckDB file with a copy of a table, or with its change events."""
