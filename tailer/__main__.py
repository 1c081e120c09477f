"""``python -m tailer``."""

from tailer.cli import run

if __name__ == "__main__":
    run()
