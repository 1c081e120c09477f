"""The example of README.md, run as it stands there."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.support.programs import run_tailer
from tests.support.source import ROOT

_TIME = re.compile(r'"_commit_timestamp":"[^"]*"')


def test_the_readme_s_example_prints_what_it_shows(tmp_path: Path) -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Try it")[2].partition("\n## ")[0]
    (commands,) = re.findall(r"```sh\n(.*?)```", section, re.DOTALL)
    (output,) = re.findall(r"```json\n(.*?)```", section, re.DOTALL)
    [(program, tail)] = re.findall(
        r"^python - <<'END'\n(.*?)END\ntailer (.*?) +#", commands, re.DOTALL
    )
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)
    done = run_tailer(*tail.split(), cwd=tmp_path)
    assert done.returncode == 0
    assert _TIME.sub("", done.stdout) == _TIME.sub("", output)
