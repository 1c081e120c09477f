"""Sinks, one file each. Nothing imports them by name: the entry points do (:mod:`tailer.sink`)."""
