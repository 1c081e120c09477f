"""The Delta protocol as types and pure rules: no I/O, no clock, no logging."""
