"""Real Helm refuses what the tables of tests/helm/wrong_values name, each with its sentence, and a refused install leaves nothing behind."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest

from tests.cluster.bed.api import Object
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.conftest import CHART
from tests.cluster.release import Release
from tests.helm.checks import lacks
from tests.helm.conftest import accepted
from tests.helm.wrong_values import CONTRADICTIONS, UNKNOWN_OR_WRONG

pytestmark = pytest.mark.cluster


def sampled(table: Iterable[str]) -> list[Any]:
    """One case in ten; the others, which tests/helm holds against the schema and the guards without Helm's client, are thorough."""
    return [pytest.param(it, marks=() if number % 10 == 0 else pytest.mark.thorough) for number, it in enumerate(table)]


def refusal(bed: Bed, values: Object) -> str:
    """Without the line breaks that Helm puts before what the schema says."""
    words = [f"--set-json={key}={json.dumps(it)}" for key, it in accepted(values).items()]
    with pytest.raises(Failed) as refused:
        bed.helm("template", "tandem", str(CHART), *words)
    return " ".join(str(refused.value).split("\n", 1)[1].split())


@pytest.mark.parametrize("case", sampled(UNKNOWN_OR_WRONG))
def test_the_schema_refuses_in_real_helm_too(case: str, bed: Bed) -> None:
    values, message = UNKNOWN_OR_WRONG[case]
    assert " ".join(message.split()) in refusal(bed, values)


@pytest.mark.parametrize("case", sampled(CONTRADICTIONS))
def test_a_guard_refuses_and_names_what_contradicts_and_the_way_out(case: str, bed: Bed) -> None:
    values, names = CONTRADICTIONS[case]
    assert lacks(refusal(bed, values), names) == []


def test_a_refused_install_leaves_nothing_and_says_why(bed: Bed, namespace: str) -> None:
    before = {it["metadata"]["name"] for it in bed.api.items(f"/api/v1/namespaces/{namespace}/secrets")}
    with pytest.raises(Failed, match=r"auth\.existingSecret and auth\.insecureNoAuth contradict"):
        Release(bed, namespace, more={"auth.existingSecret": "keys"}).install()
    assert bed.helm("list", "--all", "-q", "-n", namespace) == ""
    assert {it["metadata"]["name"] for it in bed.api.items(f"/api/v1/namespaces/{namespace}/secrets")} == before


def test_a_release_is_not_changed_by_an_upgrade_that_is_refused(bed: Bed, namespace: str) -> None:
    release = Release(bed, namespace)
    release.install()
    before = release.deployments()["gateway"]["metadata"]["generation"]
    with pytest.raises(Failed, match="terminationGracePeriodSeconds is 1"):
        Release(bed, namespace, more={"gateway.terminationGracePeriodSeconds": 1}).upgrade()
    assert release.deployments()["gateway"]["metadata"]["generation"] == before
    assert json.loads(bed.helm("list", "-n", namespace, "-o", "json"))[0]["revision"] == "1"


def test_a_pod_that_is_not_restricted_fails_the_install_so_the_lives_of_profiles_show_something(
    bed: Bed, namespace: str
) -> None:
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "loose"},
        "spec": {"containers": [{"name": "x", "image": "example.invalid/x:1"}]},
    }
    with pytest.raises(Failed, match="violates PodSecurity"):
        Release(bed, namespace, more={"extraObjects": [pod]}).install()


def test_a_cluster_older_than_the_chart_needs_is_refused(bed: Bed) -> None:
    with pytest.raises(Failed, match=r"chart requires kubeVersion: >=1\.30"):
        bed.helm("template", "tandem", str(CHART), "--set=auth.insecureNoAuth=true", "--kube-version=1.29.15")
