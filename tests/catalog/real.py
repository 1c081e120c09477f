"""A Unity Catalog server of other authors (olai-uc-server), where it was built."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from tests.catalog.writer import ManagedTable
from tests.clouds.servers import ACCOUNT, KEY, Container
from tests.support.components import CACHE, free_port
from tests.support.waiting import eventually

__all__ = ["PROGRAM", "azure_address", "keep_tables_in", "running_real_server"]

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


def azure_address(container: Container, key: str = "") -> str:
    """The address of a key as catalogs say it, with the account."""
    return f"abfss://{container.name}@{ACCOUNT}.dfs.core.windows.net/{key}".rstrip("/")


def keep_tables_in(container: Container, writer: ManagedTable) -> None:
    """Have the catalog keep the tables of a writer's schema in a container of Azurite, for which it
    vends signatures."""
    where, name = azure_address(container), container.name
    for path, body in (
        ("/catalogs", {"name": "main"}),
        ("/credentials", {"name": name, "purpose": "STORAGE",
                          "azure_storage_key": {"account_name": ACCOUNT, "account_key": KEY}}),
        ("/external-locations", {"name": name, "url": where, "credential_name": name}),
        ("/schemas", {"name": writer.schema, "catalog_name": "main", "storage_root": where}),
    ):  # fmt: skip
        status, answer = writer.call("POST", path, body)
        assert status in (200, 409), answer


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/api/2.1/unity-catalog/catalogs"):
            return True
    except URLError:
        return False
