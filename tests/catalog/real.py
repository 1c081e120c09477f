"""A Unity Catalog server of other authors (olai-uc-server), where it was built."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import urlopen

from tests.support.components import CACHE, free_port
from tests.support.waiting import eventually

#: What `make catalog-server` builds; never `make test`, for it takes most of an hour.
PROGRAM = CACHE / "catalog-server-0.0.11" / "bin" / "uc-server"
CONFIG = """\
host: 127.0.0.1
port: {port}
backend: {{engine: sqlite, path: {folder}/catalog.sqlite}}
encryption:
  active: {{id: dev, key: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}}
local_storage:
  allowed-roots: [{folder}]
managed_storage_root: file://{folder}/managed
ui: {{serve: false}}
auth: {{mode: anonymous}}
"""


@contextmanager
def running_real_server(folder: Path) -> Iterator[str]:
    """The address of a server with its tables in a folder, as long as the block runs. It checks no
    tokens."""
    port = free_port()
    (folder / "managed").mkdir()
    (folder / "config.yaml").write_text(CONFIG.format(port=port, folder=folder))
    config = ["--config", f"{folder}/config.yaml"]
    subprocess.run([PROGRAM, "migrate", *config], check=True, capture_output=True)
    command = [f"{PROGRAM}", "serve", *config, "--no-ui"]
    with (
        (folder / "log").open("wb") as log,
        subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command], stdout=log, stderr=log
        ) as process,
    ):
        try:
            eventually(lambda: _answers(port))
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/2.1/unity-catalog/catalogs"):
            return True
    except HTTPError as e:
        e.close()
        return False
    except URLError:
        return False
