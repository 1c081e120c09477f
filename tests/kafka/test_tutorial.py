"""docs/tutorial.md, run from its first command to its last in an empty folder."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.broker import Broker
from tests.support.components import free_port
from tests.support.source import ROOT

# Ends once the daemon at a port has delivered the table's last version.
DELIVERED = """
import sys, time, urllib.request
while True:
    try:
        page = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read()
        if b'tailer_offset_version{feed="orders"} 4' in page:
            break
    except OSError:  # it has not begun to listen
        pass
    time.sleep(0.2)
"""


@pytest.mark.timeout(300)
def test_the_tutorial_does_what_it_says(kafka: Broker, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    copy, events = free_port(), free_port()
    (tmp_path / "delivered.py").write_text(DELIVERED)
    edits = f's/127.0.0.1:9092/{kafka.bootstrap}/; s/^topic = .*/topic = "tutorial"/'
    script = "\n".join(("set -euo pipefail -o monitor", *blocks))
    for shown, here in {
        # This test's broker, topic and ports; no other daemon is disturbed.
        "127.0.0.1:9092": kafka.bootstrap,
        "tailer check kafka.toml": f"sed -i '{edits}' kafka.toml\ntailer check kafka.toml",
        '"orders", isolation': '"tutorial", isolation',
        "tailer run tailer.toml": f"sed -i s/9464/{copy}/ tailer.toml\ntailer run tailer.toml",
        'http = ""': f'http = "127.0.0.1:{events}"',
        # `init` checks what it has written, and no broker listens there.
        "--output kafka.toml": "--output kafka.toml || true",
        # As long as it takes, instead of a time.
        "sleep 10": f"python delivered.py {copy}",
        "python consume.py": f"python delivered.py {events}\npython consume.py",
        "20_000": "5_000",
    }.items():
        assert shown in script
        script = script.replace(shown, here)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script], cwd=tmp_path, env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=280,
    )  # fmt: skip
    said = done.stdout
    assert done.returncode == 0, said + done.stderr
    rows = re.findall(r"│ +(\d) │ (\w+) +│ +(\d+) │", said)
    assert rows == [
        ("1", "pears", "4"),
        ("3", "figs", "10"),
        ("4", "quinces", "1"),
        ("5", "figs", "4"),
    ]
    assert "4 rows in the mirror: exact" in said
    kinds = re.findall(r'"_change_type":"(\w+)","_commit_version":(\d)', said.partition("exact")[2])
    assert [kind for kind, _ in kinds].count("insert") == 5
    assert [kind for kind, _ in kinds].count("update_postimage") == 2
    assert kinds[-1] == ("delete", "3")
