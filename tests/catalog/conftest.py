"""A catalog's server for each test: the small one of the tests, and the real one where it was
built."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

from tests.catalog.server import TOKEN, CatalogServer, serving_catalog
from tests.catalog.writer import ManagedTable
from tests.support.components import CACHE, free_port
from tests.support.waiting import eventually

#: What `make catalog-server` builds; never `make test`, for it takes most of an hour.
PROGRAM = CACHE / "catalog-server-0.0.11" / "bin" / "uc-server"
CONFIG = """\
host: 127.0.0.1
port: {port}
backend: {{engine: sqlite, path: ":memory:"}}
encryption:
  active: {{id: dev, key: AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=}}
local_storage:
  allowed-roots: [{folder}]
managed_storage_root: file://{folder}/managed
ui: {{serve: false}}
auth: {{mode: anonymous}}
"""


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """No account of the machine's is used."""
    for name in ("HOST", "TOKEN", "CLIENT_ID", "CLIENT_SECRET"):
        monkeypatch.delenv(f"DATABRICKS_{name}", raising=False)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CatalogServer]:
    """The small server, to which the environment leads."""
    with serving_catalog(tmp_path) as found:
        monkeypatch.setenv("DATABRICKS_HOST", found.endpoint)
        monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
        yield found


@pytest.fixture(scope="session")
def real_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the real server."""
    if not PROGRAM.exists():
        pytest.skip("the catalog's server was not built: make catalog-server")
    folder, port = tmp_path_factory.mktemp("catalog"), free_port()
    (folder / "managed").mkdir()
    (folder / "config.yaml").write_text(CONFIG.format(port=port, folder=folder))
    command = [f"{PROGRAM}", "serve", "--config", f"{folder}/config.yaml", "--no-ui"]
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
    except URLError:
        return False


@pytest.fixture(params=["own", "real"])
def table(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> ManagedTable:
    """A new table that its catalog manages, on either server."""
    if request.param == "own":
        server: CatalogServer = request.getfixturevalue("server")
        return ManagedTable(server.endpoint, TOKEN).create()
    endpoint = request.getfixturevalue("real_server")
    monkeypatch.setenv("DATABRICKS_HOST", endpoint)
    return ManagedTable(endpoint, name=f"t{abs(hash(tmp_path))}").create()


@pytest.fixture
def managed(server: CatalogServer) -> ManagedTable:
    """A new table on the small server, which lies on command."""
    return ManagedTable(server.endpoint, TOKEN).create()
