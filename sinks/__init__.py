"""Sinks, one file or folder each. Entry points find them, imports never do (:mod:`tailer.sink`)."""
