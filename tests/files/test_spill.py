"""Folders for a while: they go with their process, however it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from tailer.files.spill import SpillFolder

PROGRAM = """
import sys, time
from pathlib import Path
from tailer.files.spill import SpillFolder
scratch = SpillFolder("some-", Path(sys.argv[1]))
(scratch.folder / "file").write_text("kept")
print(scratch.folder, flush=True)
time.sleep(60)
"""


def test_a_closed_folder_is_gone_and_another_one_is_not(tmp_path: Path) -> None:
    first, second = SpillFolder("some-", tmp_path), SpillFolder("some-", tmp_path)
    (first.folder / "file").write_text("x")
    first.close()
    first.close()
    assert list(tmp_path.iterdir()) == [second.folder]
    assert second.folder.stat().st_mode & 0o777 == 0o700
    second.close()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_a_killed_process_is_swept_by_the_next_and_a_live_one_is_kept(
    tmp_path: Path,
) -> None:
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with (
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as killed,
        subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) as living,
    ):
        try:
            assert killed.stdout is not None
            assert living.stdout is not None
            left, held = (Path(p.stdout.readline().strip()) for p in (killed, living) if p.stdout)
            killed.send_signal(signal.SIGKILL)
            killed.wait()
            assert left.exists()
            (tmp_path / "some-folder-of-mine").mkdir()
            own = SpillFolder("some-", tmp_path)
            assert not left.exists()
            assert (held / "file").read_text() == "kept"
            assert (tmp_path / "some-folder-of-mine").exists()
            own.close()
        finally:
            killed.kill()
            living.kill()
