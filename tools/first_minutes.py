"""A newcomer's first minutes, with their times: from an empty folder and an empty environment to
the first event, a polars frame, SQL over a copy, Kafka and Spark, by the commands of README.md,
docs/tutorial.md and docs/spark.md.

    python -m tools.first_minutes [FOLDER]

The wheel of this tree is made first, as if it were published. Packages come from pip's cache if
it has them, and the broker is there already, as docs/tutorial.md asks. FOLDER is made and kept;
without it a temporary one is used. Ends with 1 at the first command that fails.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.kafka.broker import Broker
from tests.support.pages import blocks
from tests.support.source import ROOT
from tests.support.tutorial import tutorial

# What the shell prints behind each step.
_END = "@@ "
_POLARS = """python - <<'END'
import polars as pl
import tailer

print(pl.DataFrame(tailer.read("orders")))
END
"""
_SPARK = """python - <<'END'
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").getOrCreate()
{read}
changes.show()
END
"""


def steps(wheel: Path, bootstrap: str) -> dict[str, str]:
    """What a newcomer runs, by what it leads to. One shell runs all of it, in this order."""
    lesson = tutorial(bootstrap, "first-minutes")
    (example,) = (block for block in blocks("README.md", "sh") if "tailer tail" in block.text)
    guide = [block.text for block in blocks("docs/spark.md", "python")]
    read = next(text for text in guide if "spark.read.format" in text)
    install = "{} -m venv .venv\nsource .venv/bin/activate\npip install -q {}\ntailer version\n"
    return {
        "installed": "set -eu\n" + install.format(sys.executable, f"'{wheel}[all]'"),
        "first event": f"mkdir first\n(cd first\n{example.text})\n",
        "in polars": f"pip install -q polars\n(cd first\n{_POLARS})\n",
        "SQL over a copy": "\n".join(text for name, text in lesson.items() if name != "To Kafka"),
        "Kafka": f"{lesson['To Kafka']}\nwait || true\n",
        "PySpark installed": f"pip install -q '{wheel}[spark]'\n",
        "Spark": _SPARK.format(read=read.replace("/data/", "")),
    }


def main() -> None:
    """Run the steps, and say how long each took."""
    parser = argparse.ArgumentParser(prog="python -m tools.first_minutes")
    parser.add_argument("folder", nargs="?", type=Path, metavar="FOLDER")
    with tempfile.TemporaryDirectory(prefix="first-minutes-") as temporary:
        folder = (parser.parse_args().folder or Path(temporary) / "empty").absolute()
        folder.mkdir(parents=True)
        build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", temporary]
        subprocess.run(build, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
        (wheel,) = Path(temporary).glob("*.whl")
        broker = Broker()
        broker.start()
        try:
            _run(folder, steps(wheel, broker.bootstrap))
        finally:
            broker.close()


def _run(folder: Path, scripts: dict[str, str]) -> None:
    """One shell runs all scripts: what one exports or starts, the next one has."""
    script = "\n".join(f"{commands}\necho '{_END}{name}'" for name, commands in scripts.items())
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    took, since = {}, time.monotonic()
    with shell as process:
        assert process.stdout is not None
        for line in process.stdout:
            if not line.startswith(_END):
                print(line, end="", flush=True)
                continue
            now = time.monotonic()
            took[line.removeprefix(_END).strip()], since = now - since, now
    for name, seconds in took.items():
        print(f"{name:18} {seconds:6.1f} s")
    if process.returncode:
        sys.exit(f"a command failed with {process.returncode}: its folder is {folder}")


if __name__ == "__main__":
    main()
