"""``tailer``, and ``python -m tailer``."""

from __future__ import annotations

from tailer.process.signals import install

__all__ = ["run"]


def run() -> None:
    """The console script. Signals are received before anything else is loaded, which takes time."""
    install()
    from tailer.cli.main import run as run_command

    run_command()


if __name__ == "__main__":
    run()
