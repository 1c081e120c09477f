"""What lies in deploy/ is accepted by the programs that will read it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tailer.config.feeds import load_config
from tailer.config.settings import DAEMON, FEED
from tailer.setting_fields import settings_of
from tailer.store.s3.options import S3Options
from tests.support.components import require
from tests.support.source import ROOT

DEPLOY = ROOT / "deploy"


def program(name: str) -> str:
    """A program of the environment or of the machine; the test is skipped where it is missing."""
    # Beside the tests' own interpreter, or beside where its packages are installed.
    places = [Path(sys.executable).parent, Path(pytest.__file__).parents[4] / "bin"]
    found = shutil.which(name, path=os.pathsep.join(map(str, places))) or shutil.which(name)
    require(name, found is not None)
    assert found is not None
    return found


def accepted(*command: str | Path, cwd: Path = DEPLOY) -> str:
    """The output of a program that must end well."""
    answer = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, check=False
    )
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout + answer.stderr


def test_the_container_is_built_as_a_linter_wants_it() -> None:
    assert accepted(program("hadolint"), "Dockerfile") == ""


def test_the_container_runs_without_rights_and_says_when_it_is_alive() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    last_stage = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM")) :]
    assert "USER 10001:10001" in last_stage
    assert any(line.startswith("HEALTHCHECK") for line in last_stage)


def test_what_the_container_copies_is_all_that_a_wheel_needs(tmp_path: Path) -> None:
    for line in (DEPLOY / "Dockerfile").read_text().splitlines():
        if not line.startswith("COPY") or "--from" in line:
            continue
        *sources, target = line.split()[1:]
        for source in sources:
            if (ROOT / source).is_dir():
                ignored = shutil.ignore_patterns("*.so", "__pycache__")
                shutil.copytree(ROOT / source, tmp_path / target, ignore=ignored)
            else:
                shutil.copy(ROOT / source, tmp_path / target)
    crate = {path.name for path in (tmp_path / "native").iterdir()}
    assert crate >= {"Cargo.lock", "Cargo.toml", "build.rs", "src"}
    shutil.rmtree(tmp_path / "native")  # the packaging tests build it
    accepted(sys.executable, "-m", "build", "--wheel", "--no-isolation", cwd=tmp_path)
    assert list(tmp_path.glob("dist/*.whl"))


def test_compose_knows_every_key_of_the_composition() -> None:
    accepted(program("docker-compose"), "-f", "compose.yaml", "config", "-q")


def test_systemd_takes_the_unit_and_finds_it_hardened(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    unit = tmp_path / "delta-tailer.service"
    text = (DEPLOY / "systemd" / unit.name).read_text()
    unit.write_text(text.replace("/opt/tailer/bin/tailer", sys.executable))
    assert accepted(analyze, "verify", unit) == ""
    answer = accepted(analyze, "security", "--offline=true", "--threshold=20", unit)
    assert "exposure level" in answer


@pytest.mark.parametrize("name", ["s3-read-policy.json", "s3-state-policy.json"])
def test_a_policy_allows_no_more_than_its_name_says(name: str) -> None:
    policy = json.loads((DEPLOY / name).read_text())
    allowed: set[str] = set()
    for statement in policy["Statement"]:
        actions = statement["Action"]
        allowed.update([actions] if isinstance(actions, str) else actions)
    read = {"s3:ListBucket", "s3:GetObject"}
    assert allowed == read if "read" in name else read | {"s3:PutObject", "s3:DeleteObject"}
    for statement in policy["Statement"]:
        limited = statement["Resource"].endswith("/*") or "Condition" in statement
        assert limited, f"{statement['Sid']} reaches the whole bucket"


def test_the_example_shows_twelve_options_and_a_sink() -> None:
    text = (DEPLOY / "tailer.toml").read_text().split("# Exactly once to Kafka")[0]
    shown = re.findall(r"^#? ?(\w+) = ", text, re.MULTILINE)
    assert len(shown) == 14
    assert set(shown) <= {*DAEMON, *FEED, *settings_of(S3Options), "type", "path"}


@pytest.mark.parametrize("name", ["tailer.toml", "compose/tailer.toml"])
def test_a_shown_default_is_the_default(name: str, tmp_path: Path) -> None:
    plain = load_config(DEPLOY / name)
    # With every key that is commented out, but for those of the other sink.
    lines = (DEPLOY / name).read_text().split("# Exactly once to Kafka")[0].splitlines()
    shown = [re.sub(r"^#(\w+ = )", r"\1", line) for line in lines]
    if name == "tailer.toml":
        (tmp_path / "tailer.toml").write_text("\n".join(shown))
        full = load_config(tmp_path / "tailer.toml", {"TAILER_TOKEN": ""})
        assert full.feeds["orders"].options == plain.feeds["orders"].options
