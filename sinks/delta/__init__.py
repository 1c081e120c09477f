"""A Delta table with a copy of another one, or with its change events."""
