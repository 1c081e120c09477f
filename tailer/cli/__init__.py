"""The command line: one file per command; `main` parses arguments and sets the exit status."""

from __future__ import annotations

from tailer.cli.main import main, parser, run

__all__ = ["main", "parser", "run"]
