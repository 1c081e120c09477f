"""What tests need is made before the first of them, once, and named where it can't be had."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests import prepare
from tests.benchmarks import __main__ as benchmarks
from tests.support import components
from tests.support.components import Component, NotMade, run_maker
from tests.support.source import ROOT

#: Of the run that this test is a part of, and not of the one that it starts.
OURS = ("CI", "PYTEST_ADDOPTS", "TAILER_TESTS_WITHOUT")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(components, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(Component, "failed", {})
    monkeypatch.delenv("CI", raising=False)
    return tmp_path / "cache"


def component(name: str, make: object = None, missing: str = "") -> Component:
    def write(home: Path) -> None:
        (home / "made").write_text(name)

    maker = make if callable(make) else write
    return Component(
        name, f"the {name}", home=lambda: f"{name}-1", make=maker, missing=lambda: missing
    )


def prepared(
    monkeypatch: pytest.MonkeyPatch, *wanted: Component
) -> tuple[dict[str, str], list[str]]:
    said: list[str] = []
    monkeypatch.setattr(prepare, "COMPONENTS", {c.name: c for c in wanted})
    return prepare.prepare([c.name for c in wanted], said.append), said


def test_a_component_is_made_once_and_then_found(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    made: list[Path] = []
    broker = component("broker", made.append)
    failed, said = prepared(monkeypatch, broker)
    assert (failed, made) == ({}, [cache / "broker-1"])
    assert said == [line for line in said if "prepared after" in line and "the broker" in line]
    assert prepared(monkeypatch, broker) == ({}, [])
    assert len(made) == 1
    assert broker.path() == cache / "broker-1"


def test_what_was_left_half_made_is_made_again(
    monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    (cache / "broker-1" / "half").mkdir(parents=True)
    broker = component("broker")
    assert prepared(monkeypatch, broker)[0] == {}
    assert [path.name for path in broker.path().iterdir()] == ["made"]


def test_components_are_made_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2)

    def make(_: Path) -> None:
        together.wait(50)

    assert prepared(monkeypatch, component("a", make), component("b", make))[0] == {}


def test_what_takes_long_is_named_while_it_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = threading.Event()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        seen.set()

    slow = component("broker", lambda _: seen.wait(50))
    monkeypatch.setattr(prepare, "COMPONENTS", {"broker": slow})
    monkeypatch.setattr(prepare, "BEAT_S", 0.01)
    assert prepare.prepare(["broker"], say) == {}
    assert said[0].startswith("preparing, ")
    assert said[0].endswith(": the broker")


def test_a_program_that_fails_is_run_once_more_and_then_quoted(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    count = f"echo x >> {runs}; test $(wc -l < {runs}) -eq"
    run_maker(["sh", "-c", f"{count} 2"])
    with pytest.raises(NotMade, match=r"^sh ended with status 3: no such index$"):
        run_maker(["sh", "-c", f"{count} 9 || echo no such index; exit 3"])
    assert len(runs.read_text().split()) == 4


def test_one_that_fails_is_named_with_its_reason_and_skipped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = component("broker", lambda _: run_maker(["sh", "-c", "echo no network; exit 1"]))
    registry = component("registry")
    failed, said = prepared(monkeypatch, broker, registry)
    assert failed == {"broker": "sh ended with status 1: no network"}
    assert "can't be prepared: the broker: sh ended with status 1: no network" in said
    monkeypatch.setattr(Component, "failed", failed)
    with pytest.raises(pytest.skip.Exception, match=r"the broker \(sh ended .* is missing"):
        broker.path()
    assert registry.path().exists()


def test_what_the_machine_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = component("broker", missing="Java 17 or newer")
    assert prepared(monkeypatch, broker)[0] == {"broker": "Java 17 or newer is missing"}
    with pytest.raises(pytest.skip.Exception, match="Java 17 or newer is missing"):
        broker.path()


def test_a_test_that_does_not_say_what_it_needs_does_not_wait_for_it() -> None:
    with pytest.raises(AssertionError, match=r"marked needs\('broker'\)"):
        component("broker").path()


def test_where_ci_is_true_the_run_ends_before_its_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = component("broker", missing="Java 17 or newer")
    monkeypatch.setattr(prepare, "COMPONENTS", {"broker": broker})
    assert prepare.prepare_all(["broker"]) == {"broker": "Java 17 or newer is missing"}
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match="not prepared: broker"):
        prepare.prepare_all(["broker"])


def test_a_pytest_prepares_what_its_own_tests_need(tmp_path: Path) -> None:
    """The fixture's marker is seen, and what can't be had is skipped by its name."""
    test = tmp_path / "test_one.py"
    test.write_text("def test_one(s3_server): pass\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "tests.conftest",
         "-p", "no:cacheprovider", "-p", "no:randomly", "--rootdir", str(tmp_path), str(test)],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=280,
        env={**{n: v for n, v in os.environ.items() if n not in OURS}, "PATH": "/nowhere"},
    )  # fmt: skip
    assert "can't be prepared: the S3 server: Go is missing" in (done.stdout)
    assert "1 skipped" in done.stdout


def test_a_benchmark_that_lacks_its_component_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are run all the same."""
    run: list[str] = []
    asked: list[str] = []

    def missing(names: Iterable[str], say: object) -> dict[str, str]:
        assert callable(say)
        asked.extend(names)
        return {"kafka": "Maven is missing"}

    def ran(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        run.append(command[2])
        return subprocess.CompletedProcess(command, 0)

    assert {name for names in benchmarks.COMPONENTS.values() for name in names} <= set(
        prepare.COMPONENTS
    )
    monkeypatch.setattr(benchmarks, "prepare", missing)
    monkeypatch.setattr(subprocess, "run", ran)
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "kafka", "encode"])
    with pytest.raises(SystemExit, match="not prepared: kafka"):
        benchmarks.main()
    assert asked == ["native", "kafka"]
    assert run == ["tests.benchmarks.bench_encode"]
