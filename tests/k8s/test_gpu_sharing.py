"""The names under which cards are handed out are the names that pools ask for."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from .conftest import K8S, Object, one


def configs() -> dict[str, Any]:
    data = one("gpu-sharing/configs.yaml", "ConfigMap")["data"]
    return {name: yaml.safe_load(text) for name, text in data.items()}


def handed_out(config: Object) -> str:
    """The resource that a node with this configuration has, for one card or one seventh of one."""
    if config["flags"]["migStrategy"] == "mixed":
        return "nvidia.com/mig-1g.10gb"
    for sharing in config.get("sharing", {}).values():
        (resource,) = sharing["resources"]
        name: str = resource["name"]
        return f"{name}.shared" if sharing["renameByDefault"] else name
    return "nvidia.com/gpu"


def test_every_way_is_there() -> None:
    assert list(configs()) == ["whole", "time-slicing", "mps", "mig"]


@pytest.mark.parametrize("way", ["whole", "time-slicing", "mps", "mig"])
def test_a_config_has_only_fields_that_the_plugin_knows(way: str) -> None:
    """The plugin ignores what it does not know: a misspelt option would turn sharing off in silence."""
    config = configs()[way]
    assert config.keys() <= {"version", "flags", "sharing"}
    assert config["version"] == "v1"
    assert config["flags"].keys() == {"migStrategy"}
    assert config["flags"]["migStrategy"] in ("none", "single", "mixed")
    for kind, sharing in config.get("sharing", {}).items():
        assert kind in ("timeSlicing", "mps")
        assert sharing.keys() == {"renameByDefault", "failRequestsGreaterThanOne", "resources"}
        assert [resource.keys() for resource in sharing["resources"]] == [{"name", "replicas"}]
        assert sharing["resources"][0]["replicas"] >= 2


def test_the_two_ways_of_sharing_exclude_each_other_and_mps_excludes_mig() -> None:
    for config in configs().values():
        assert len(config.get("sharing", {})) <= 1
        if "mps" in config.get("sharing", {}):
            assert config["flags"]["migStrategy"] == "none"


@pytest.mark.parametrize("way", ["time-slicing", "mps"])
def test_a_share_does_not_pass_for_a_card_and_two_are_refused(way: str) -> None:
    (sharing,) = configs()[way]["sharing"].values()
    assert sharing["renameByDefault"] is True
    assert sharing["failRequestsGreaterThanOne"] is True
    assert handed_out(configs()[way]) == "nvidia.com/gpu.shared"


def test_a_node_that_says_nothing_hands_out_whole_cards_as_the_chart_asks_by_default(gpu_pod: Object) -> None:
    assert handed_out(configs()["whole"]) in gpu_pod["containers"][0]["resources"]["limits"]


@pytest.mark.parametrize("file", ["device-plugin-values.yaml", "gpu-operator-values.yaml"])
def test_the_values_of_nvidias_charts_name_the_configmap_and_a_key_of_it(file: str) -> None:
    values = yaml.safe_load((K8S / "gpu-sharing" / file).read_text())
    config = values.get("devicePlugin", values)["config"]
    assert config == {"name": one("gpu-sharing/configs.yaml", "ConfigMap")["metadata"]["name"], "default": "whole"}


def test_a_karpenter_node_takes_a_key_that_is_there_and_counts_its_shares() -> None:
    pool = one("gpu-nodes/karpenter-aws-shared.yaml", "NodePool")
    way = pool["spec"]["template"]["metadata"]["labels"]["nvidia.com/device-plugin.config"]
    (resource,) = configs()[way]["sharing"]["timeSlicing"]["resources"]
    capacity = one("gpu-nodes/karpenter-aws-shared.yaml", "NodeOverlay")["spec"]["capacity"]
    assert capacity == {handed_out(configs()[way]): str(resource["replicas"])}
