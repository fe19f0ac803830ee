"""What an install says when it is done: what serves now, what waits for what, how to ask, and what is open to whom."""

from __future__ import annotations

import shlex

import pytest

from .conftest import Object, Render

KEYS: Object = {"auth": {"existingSecret": "keys", "insecureNoAuth": False, "client": {"existingSecret": "own"}}}
ASLEEP = {"enabled": True, "minReplicas": 0, "metrics": [{"type": "External"}]}
GPU: Object = {"pools": {"gpu": {"enabled": True}}}


def paragraph(notes: str, beginning: str) -> str:
    (found,) = (part for part in notes.split("\n\n") if part.startswith(beginning))
    return found


@pytest.mark.parametrize(
    ("pools", "now", "later"),
    [
        ({}, ["cpu"], {}),
        ({"gpu": {"enabled": True}}, ["cpu"], {"gpu": "Waits for a node with nvidia.com/gpu:"}),
        (
            {"gpu": {"enabled": True, "autoscaling": ASLEEP}},
            ["cpu"],
            {"gpu": "Waits until it is scaled up, and then for a node with nvidia.com/gpu:"},
        ),
        (
            {"gpu": {"enabled": True, "replicas": None}},
            ["cpu"],
            {"gpu": "Waits until it is scaled up, and then for a node with nvidia.com/gpu:"},
        ),
        (
            {"gpu": {"enabled": True, "gpu": {"resource": "nvidia.com/mig-1g.10gb"}}},
            ["cpu"],
            {"gpu": "Waits for a node with nvidia.com/mig-1g.10gb:"},
        ),
        (
            {"cpu": {"replicas": 0}, "spare": {"models": ["digits-fp32"]}},
            ["spare"],
            {"cpu": "Waits until it is scaled up:"},
        ),
        (
            {"cpu": {"enabled": False}, "gpu": {"enabled": True}},
            [],
            {"gpu": "Waits for a node with nvidia.com/gpu:"},
        ),
    ],
)
def test_what_serves_and_what_waits_for_what(
    pools: Object, now: list[str], later: dict[str, str], render: Render
) -> None:
    lines = paragraph(render({"pools": pools}).notes, "Serves").splitlines()
    waits = [number for number, line in enumerate(lines) if line.startswith("Wait")]
    serving = lines[1 : waits[0]] if waits else lines[1:]
    assert [line.split()[1].removesuffix(":") for line in serving if line.startswith("  pool")] == now
    assert bool(now) != any(line.startswith("  nothing") for line in serving)
    assert {lines[n + 1].split()[1].removesuffix(":"): lines[n] for n in waits} == later
    assert any(" tandem cluster status" in line for line in lines) == bool(later)


def test_how_to_wait_for_a_gpu_pool_is_told_unless_it_sleeps(render: Render) -> None:
    """Seen with Helm 3.20 on a real API server: it counts a pool of a fixed number, and not one of a single Triton that an autoscaler owns."""
    assert "kubectl --namespace serving rollout status deployment/tandem-gpu" in render(GPU).notes
    assert "rollout status" not in render({"pools": {"gpu": {"enabled": True, "autoscaling": ASLEEP}}}).notes
    assert "rollout status" not in render().notes


def test_models_are_named(render: Render) -> None:
    assert "  pool cpu: digits-fp32, digits-int8" in render().notes.splitlines()


def test_how_to_ask_has_the_key_where_there_are_keys(render: Render) -> None:
    assert "Authorization" not in render().notes
    notes = render(KEYS).notes
    assert "get secret own -o jsonpath='{.data.api-key}'" in notes
    assert 'curl -H "Authorization: Bearer $TANDEM_API_KEY" http://127.0.0.1:8080/v1/models' in notes
    without = {"auth": {**KEYS["auth"], "client": {}}, "test": {"enabled": False}}
    assert "export TANDEM_API_KEY=tdm_..." in render(without).notes


def test_a_secrets_key_with_a_dot_is_quoted_as_kubectl_wants_it(render: Render) -> None:
    notes = render({"auth": {**KEYS["auth"], "client": {"existingSecret": "own", "key": "a.key"}}}).notes
    assert "jsonpath='{.data.a\\.key}'" in notes


@pytest.mark.parametrize("values", [{}, KEYS, GPU, {**KEYS, "loadTest": {"enabled": True}}])
def test_every_command_has_its_namespace_and_is_one_that_a_shell_reads(values: Object, render: Render) -> None:
    commands = [line.strip() for line in render(values).notes.splitlines() if line.startswith(("  kubectl", "  helm"))]
    assert commands
    for command in commands:
        assert "serving" in shlex.split(command)


def test_what_is_open_is_a_warning(render: Render) -> None:
    assert "no API keys" in render().notes
    assert "port 9090 may unload" in render().notes
    closed = {"gateway": {"admin": {"enabled": False}}}
    assert "port 9090" not in render(closed).notes
    assert "WARNING" not in render(KEYS).notes
    assert "WARNING: no NetworkPolicy" in render({**KEYS, "networkPolicy": {"enabled": False}}).notes


def test_pools_without_prices_are_told_where_there_is_a_choice(render: Render) -> None:
    priced = {"pools": {"cpu": {"pricePerHour": 0.2}, "gpu": {"enabled": True, "pricePerHour": 1}}}
    assert "no prices" in render(GPU).notes
    assert "no prices" not in render(priced).notes
    assert "no prices" not in render().notes


def test_what_is_off_is_not_offered(render: Render) -> None:
    assert "helm test tandem" in render().notes
    assert "helm test" not in render({"test": {"enabled": False}}).notes
    assert "load test" not in render().notes
    assert "gRPC" not in render({"gateway": {"grpc": {"enabled": False}}}).notes


def test_the_load_tests_log_is_that_of_its_job(render: Render) -> None:
    it = render({"loadTest": {"enabled": True}})
    (master,) = (job["metadata"]["name"] for job in it.all("Job") if "-master-" in job["metadata"]["name"])
    assert f"logs --follow job/{master}" in it.notes
