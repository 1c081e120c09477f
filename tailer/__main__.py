"""``tailer``, and ``python -m tailer``."""

from __future__ import annotations

from tailer.process.signals import install_receiver


def run() -> None:
    """Run the console script. It receives signals before it loads anything else, which takes
    time."""
    install_receiver()
    from tailer.cli.main import run as run_command

    run_command()


if __name__ == "__main__":
    run()
