"""The chart is accepted by Helm, and what it renders by Kubernetes' own descriptions."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tailer.config.feeds import load_config
from tests.deploy.helm import helm_program
from tests.deploy.test_files import DEPLOY, accepted, program

pytestmark = [pytest.mark.slow, pytest.mark.needs("helm")]  # which is built with Go
CHART = DEPLOY / "helm" / "delta-tailer"
ALL = {
    "ServiceAccount",
    "ConfigMap",
    "Deployment",
    "PodDisruptionBudget",
    "Service",
    "NetworkPolicy",
}
#: Some values in each of which a template may go wrong.
VALUES: dict[str, dict[str, Any]] = {
    "default": {},
    "alone": {"replicas": 1, "networkPolicy": {"enabled": False}},
    "all": {
        "image": {"tag": "0.1.1", "pullSecrets": [{"name": "registry"}]},
        "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/t"}},
        "podLabels": {"azure.workload.identity/use": "true"},
        "podAnnotations": {"team": "lake"},
        "nodeSelector": {"kubernetes.io/arch": "arm64"},
        "tolerations": [{"key": "spot", "operator": "Exists", "effect": "NoSchedule"}],
        "networkPolicy": {"from": [{"namespaceSelector": {"matchLabels": {"name": "monitoring"}}}]},
        "serviceMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
    },
}


def rendered(values: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """What the chart makes of these values, one document for each resource."""
    (folder / "values.json").write_text(json.dumps(values))
    command = (helm_program(), "template", "night", CHART, "--values", folder / "values.json")
    text = accepted(*command, "--kube-version", "1.30.0")
    (folder / "rendered.yaml").write_text(text)
    return [document for document in yaml.safe_load_all(text) if document]


def test_helm_finds_nothing_to_complain_about() -> None:
    assert "0 chart(s) failed" in accepted(helm_program(), "lint", "--strict", CHART)


@pytest.mark.parametrize("name", VALUES)
def test_kubernetes_knows_every_key_of_what_is_rendered(name: str, tmp_path: Path) -> None:
    documents = rendered(VALUES[name], tmp_path)
    known = [d for d in documents if d["kind"] != "ServiceMonitor"]  # not Kubernetes' own
    (tmp_path / "known.yaml").write_text(yaml.safe_dump_all(known))
    answer = accepted(program("kubernetes-validate"), "--strict", tmp_path / "known.yaml")
    assert len(re.findall(r" passed for resource ", answer)) == len(known)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("default", ALL),
        ("alone", ALL - {"PodDisruptionBudget", "NetworkPolicy"}),
        ("all", ALL | {"ServiceMonitor"}),
    ],
)
def test_the_values_say_what_there_is(name: str, kinds: set[str], tmp_path: Path) -> None:
    documents = rendered(VALUES[name], tmp_path)
    assert {document["kind"] for document in documents} == kinds
    # One selector and one name for all: a Service that selects no pod is found by nobody.
    deployment = next(d for d in documents if d["kind"] == "Deployment")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    service = next(d for d in documents if d["kind"] == "Service")
    assert service["spec"]["selector"].items() <= labels.items()
    assert {document["metadata"]["name"] for document in documents} == {"night-delta-tailer"}


def test_a_pod_has_no_rights_and_restarts_for_another_configuration(tmp_path: Path) -> None:
    def pod(config: str | None) -> dict[str, Any]:
        documents = rendered({} if config is None else {"config": config}, tmp_path)
        found = next(d for d in documents if d["kind"] == "Deployment")
        return dict(found["spec"]["template"])

    template = pod(None)
    assert template["spec"]["securityContext"]["runAsNonRoot"] is True
    (container,) = template["spec"]["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    sums = [pod(c)["metadata"]["annotations"]["checksum/config"] for c in ("a = 1", "a = 2")]
    assert sums[0] != sums[1]


def test_the_configuration_is_one(tmp_path: Path) -> None:
    documents = rendered({}, tmp_path)
    text = next(d for d in documents if d["kind"] == "ConfigMap")["data"]["tailer.toml"]
    (tmp_path / "tailer.toml").write_text(text)
    assert load_config(tmp_path / "tailer.toml").feeds["orders"].table.startswith("s3://")


def test_chart_and_package_have_one_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    project = (DEPLOY.parent / "pyproject.toml").read_text()
    version = re.search(r'^version = "(.+)"', project, re.MULTILINE)
    assert version is not None
    assert chart["version"] == chart["appVersion"] == version[1]
