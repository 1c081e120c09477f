"""docs/tutorial.md as scripts for bash, with a broker and ports of this machine's."""

from __future__ import annotations

import re

from tests.support.components import free_ports
from tests.support.source import ROOT

_COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Ends once the daemon at a port has delivered the table's last version.
_DELIVERED = """cat > delivered.py <<'END'
import sys, time, urllib.request
while True:
    try:
        page = urllib.request.urlopen(f"http://127.0.0.1:{sys.argv[1]}/metrics").read()
        if b'tailer_offset_version{feed="orders"} 4' in page:
            break
    except OSError:  # it has not begun to listen
        pass
    time.sleep(0.2)
END
"""


def tutorial(bootstrap: str, topic: str) -> dict[str, str]:
    """The commands of the page by heading. One shell runs all of them, in this order."""
    page = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
    copy, events = free_ports(2)
    edits = f's/127.0.0.1:9092/{bootstrap}/; s/^topic = .*/topic = "{topic}"/'
    for shown, here in {
        # This run's broker, topic and ports; no other daemon is disturbed.
        "127.0.0.1:9092": bootstrap,
        "tailer check kafka.toml": f"sed -i '{edits}' kafka.toml\ntailer check kafka.toml",
        '"orders", isolation': f'"{topic}", isolation',
        "tailer run tailer.toml": f"sed -i s/9464/{copy}/ tailer.toml\ntailer run tailer.toml",
        'http = ""': f'http = "127.0.0.1:{events}"',
        # `init` checks what it has written, and no broker listens there.
        "--output kafka.toml": "--output kafka.toml || true",
        # As long as it takes, instead of a time.
        "sleep 10": f"python delivered.py {copy}",
        "python consume.py": f"python delivered.py {events}\npython consume.py",
        "20_000": "5_000",
    }.items():
        assert shown in page
        page = page.replace(shown, here)
    scripts = {"": f"set -euo pipefail -o monitor\n{_DELIVERED}"}
    for section in page.split("\n## ")[1:]:
        heading = section.partition("\n")[0]
        scripts[heading] = "\n".join(_COMMANDS.findall(section))
    return {heading: script for heading, script in scripts.items() if script}
