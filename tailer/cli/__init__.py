"""The command line: a file per command, those that serve in `services`; `main` parses arguments and
sets the exit status.
"""

from __future__ import annotations

from tailer.cli.main import build_parser, main, run

__all__ = ["build_parser", "main", "run"]
