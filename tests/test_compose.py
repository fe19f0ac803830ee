"""compose.yaml without Docker: each command is one of Tandem's, each file and image is there, and nothing is open to other machines."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import click
import pytest
import yaml

import serving
from serving.cli import cli
from serving.documents.reader import read_document
from serving.settings import GatewaySettings

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
OURS = {name: it for name, it in SERVICES.items() if "build" in it}
CONFIG = ROOT / "deploy" / "compose"


def option(service: str, name: str) -> int:
    [value] = [it.partition("=")[2] for it in SERVICES[service]["command"] if it.startswith(f"{name}=")]
    return int(value)


def test_it_has_what_is_promised() -> None:
    assert SERVICES.keys() == {"gateway", "triton-cpu", "triton-gpu", "prometheus", "grafana"}
    assert {name for name, it in SERVICES.items() if it.get("profiles")} == {"triton-gpu"}
    [device] = SERVICES["triton-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert (device["driver"], device["capabilities"]) == ("nvidia", ["gpu"])


@pytest.mark.parametrize("name", OURS)
def test_each_of_ours_is_a_stage_of_the_dockerfile_and_runs_a_verb_that_takes_its_words(name: str) -> None:
    service = OURS[name]
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    assert service["build"]["target"] in stages
    assert service["image"] == f"tandem-{service['build']['target']}:{serving.__version__}"
    verb, *words = service["command"]
    command = cli.commands[verb]
    assert isinstance(command, click.Command)
    command.make_context(f"tandem {verb}", words, help_option_names=["-h", "--help"])


@pytest.mark.parametrize("name", SERVICES)
def test_what_is_mounted_is_there_and_ports_are_on_loopback(name: str) -> None:
    service = SERVICES[name]
    for mount in service["volumes"]:
        source, _, how = mount.partition(":")
        assert (ROOT / source).exists() if source.startswith(".") else source in COMPOSE["volumes"]
        assert how.endswith(":ro") or not source.startswith(".")
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert set(service.get("depends_on", [])) <= SERVICES.keys()
    assert service["cap_drop"] == ["ALL"]


def test_the_gateway_is_told_of_tritons_that_there_are_and_its_ports_are_published() -> None:
    settings = read_document(CONFIG / "tandem.yaml", "settings").values(GatewaySettings)
    for pool in settings.pools.values():
        for url in pool.urls:
            parts = urlsplit(url)
            assert (parts.hostname in SERVICES, parts.port) == (True, 8000)
    published = {port.rpartition(":")[2] for port in SERVICES["gateway"]["ports"]}
    assert published == {str(option("gateway", it)) for it in ("--port", "--grpc-port", "--admin-port")}


def test_prometheus_reads_what_there_is_with_the_labels_that_the_dashboard_asks_for() -> None:
    jobs = yaml.safe_load((CONFIG / "prometheus.yaml").read_text())["scrape_configs"]
    told = [(job["job_name"], it) for job in jobs for it in job["static_configs"]]
    targets = {target for _, it in told for target in it["targets"]}
    admin = option("gateway", "--admin-port")
    assert targets == {f"gateway:{admin}", "triton-cpu:8002", "triton-gpu:8002"}
    dashboard = json.loads((ROOT / "helm/tandem/files/dashboard.json").read_text())
    variables = {it["name"] for it in dashboard["templating"]["list"]} - {"datasource"}
    assert all(variables <= it["labels"].keys() for _, it in told)
    asked = set(re.findall(r'job=\\?"([\w-]+)', json.dumps(dashboard)))
    assert asked <= {name for name, _ in told}


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    [source] = yaml.safe_load((CONFIG / "grafana-datasource.yaml").read_text())["datasources"]
    assert urlsplit(source["url"]).hostname in SERVICES
    [provider] = yaml.safe_load((CONFIG / "grafana-dashboards.yaml").read_text())["providers"]
    assert any(f":{provider['options']['path']}/" in mount for mount in SERVICES["grafana"]["volumes"])


def test_the_dev_container_sets_itself_up_by_a_target_that_there_is() -> None:
    told = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    program, target = told["postCreateCommand"].split()
    assert (program, bool(re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE))) == ("make", True)
