"""The log of a table: listing, reading and following it, its history."""
