"""Threads that need a decoder at the same moment get one, and the process lives."""

from __future__ import annotations

import subprocess
import sys

ALL_AT_ONCE = """
import sys, threading
from tailer.delta.parsing import build_action, parse_entries, parse_line
sys.setswitchinterval(1e-6)
add = {"path": "a", "partitionValues": {}, "size": 1, "modificationTime": 1, "dataChange": True}
line = b'{"add":{"path":"a","partitionValues":{},"size":1,"modificationTime":1,"dataChange":true}}'
ready = threading.Barrier(8)
def read():
    ready.wait()
    assert parse_line(line).path == "a"
    assert parse_entries([line])[0][0].path == "a"
    assert build_action("add", add).path == "a"
    parse_line(line, files=False)
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_the_first_lines_are_parsed_by_many_threads_at_once() -> None:
    """With a decoder for each thread, two in five of these processes ended by SIGSEGV."""
    for _ in range(15):
        subprocess.run([sys.executable, "-c", ALL_AT_ONCE], check=True)
