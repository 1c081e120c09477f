"""A catalog's server for each test: the small one of the tests, and the real one where it was
built."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.catalog.glue import Database
from tests.catalog.lakes import Lake, keep_on_azure
from tests.catalog.real import PROGRAM, running_real_server
from tests.catalog.server import CLIENT, TOKEN, CatalogServer, serving_catalog
from tests.catalog.writer import ManagedTable
from tests.support.aws import ACCOUNT, Aws
from tests.support.token_front import TokenFront
from tests.support.web_front import running_front


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
def real_front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenFront]:
    """The real server, with a front that checks tokens."""
    if not PROGRAM.exists():
        pytest.skip("the catalog's server was not built: make catalog-server")
    with (
        running_real_server(tmp_path_factory.mktemp("catalog")) as endpoint,
        running_front(TokenFront(endpoint, TOKEN, CLIENT)) as front,
    ):
        yield front


@pytest.fixture
def real_server(real_front: TokenFront, monkeypatch: pytest.MonkeyPatch) -> str:
    """The address of the real server's front, to which the environment leads."""
    monkeypatch.setenv("DATABRICKS_HOST", real_front.url)
    monkeypatch.setenv("DATABRICKS_TOKEN", TOKEN)
    return real_front.url


@pytest.fixture(params=["own", "real"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> ManagedTable:
    """A new table that its catalog manages, on either server."""
    if request.param == "own":
        server: CatalogServer = request.getfixturevalue("server")
        return ManagedTable(server.endpoint, TOKEN).create()
    endpoint = request.getfixturevalue("real_server")
    return ManagedTable(endpoint, TOKEN, name=f"t{abs(hash(tmp_path))}").create()


@pytest.fixture
def managed(server: CatalogServer) -> ManagedTable:
    """A new table on the small server, which lies on command."""
    return ManagedTable(server.endpoint, TOKEN).create()


@contextmanager
def running_lake(kind: str, request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A lake by the tests' own server or the real one, to whose front the environment leads."""
    own: CatalogServer | None = request.getfixturevalue("server") if kind == "own" else None
    upstream = own.endpoint if own else request.getfixturevalue("real_front").upstream
    container = request.getfixturevalue("azurite").container()
    with (
        running_front(TokenFront(upstream, TOKEN, CLIENT)) as front,
        pytest.MonkeyPatch.context() as set_,
    ):
        set_.setenv("DATABRICKS_HOST", front.url)
        set_.setenv("DATABRICKS_TOKEN", TOKEN)
        yield Lake(front, keep_on_azure(container, upstream, own), own)


@pytest.fixture(params=["own", "real"])
def lake(request: pytest.FixtureRequest) -> Iterator[Lake]:
    """A lake by either server."""
    with running_lake(request.param, request) as found:
        yield found


@pytest.fixture
def database(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> Database:
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", aws.url)
    for name, value in ACCOUNT.items():
        monkeypatch.setenv(name, value)
    return Database(aws.client("glue"))
