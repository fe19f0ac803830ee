"""Which release, address, image and key a campaign takes, and what is said where that cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serving.cluster.campaign.manifests import CampaignFile, command, config_map, job, job_name, network_policy
from serving.cluster.campaign.target import KeyReference, Target, target
from serving.cluster.objects.fields import Object
from serving.cluster.snapshot import ClusterSnapshot
from serving.errors import EnvironmentFault, UserError
from tests.cluster.objects import parsed


def of(component: str, release: str = "tandem", **spec: Any) -> Object:
    labels = {
        "app.kubernetes.io/name": "tandem",
        "app.kubernetes.io/instance": release,
        "app.kubernetes.io/component": component,
        "app.kubernetes.io/version": "0.1.0",
    }
    return {"metadata": {"name": f"{release}-{component}", "labels": labels}, "spec": spec}


def gateway(
    release: str = "tandem", image: str = "tandem-gateway:0.1.0", *, keys: bool = False, client: str = ""
) -> Any:
    words = ["tandem", "gateway", *(["--keys=/etc/tandem-keys/keys.json"] if keys else [])]
    container = {"name": "gateway", "image": image, "imagePullPolicy": "Always", "command": words}
    pod = {"containers": [container], "imagePullSecrets": [{"name": "registry"}]}
    it = {**of("gateway", release, template={"spec": pod}), "status": {"readyReplicas": 2}}
    return {**it, "metadata": {**it["metadata"], "annotations": {"tandem-client-key": client}}} if client else it


def service(release: str = "tandem", port: str = "http") -> Object:
    return of("gateway", release, ports=[{"name": port, "port": 80}])


def found(
    *gateways: Object,
    release: str | None = None,
    image: str | None = None,
    key: KeyReference | None = None,
    **more: Any,
) -> Target:
    lists = {"services": [service(name) for name in ("tandem", "other")], **more}
    lists["deployments"] = gateways or (gateway(),)
    return target(
        ClusterSnapshot("serve", **{name: parsed(name, it) for name, it in lists.items()}), release, image, key
    )


def test_all_is_read_off_the_gateway() -> None:
    assert found() == Target(
        "tandem", "tandem", "http://tandem-gateway:80", "tandem-loadtest:0.1.0", "Always", ("registry",), None, False
    )


@pytest.mark.parametrize(
    ("gateways", "loadtest"),
    [
        ("registry:5000/team/tandem-gateway:1.2", "registry:5000/team/tandem-loadtest:1.2"),
        ("registry:5000/gateway/tandem-gateway@sha256:abc", "registry:5000/gateway/tandem-loadtest:0.1.0"),
        ("tandem-gateway:1.2@sha256:abc", "tandem-loadtest:0.1.0"),
        ("registry/tandem-gateway", "registry/tandem-loadtest:0.1.0"),
    ],
)
def test_the_image_is_the_one_beside_the_gateways(gateways: str, loadtest: str) -> None:
    assert found(gateway(image=gateways)).image == loadtest


def test_the_charts_own_load_test_tells_its_image() -> None:
    own = of("loadtest", template={"spec": {"containers": [{"image": "mine/load:3"}]}})
    others = of("loadtest", "other", template={"spec": {"containers": [{"image": "theirs/load:3"}]}})
    assert found(jobs=[others, own]).image == "mine/load:3"
    assert found(jobs=[own], image="said:1").image == "said:1"


def test_an_image_that_cannot_be_told_is_asked_for() -> None:
    with pytest.raises(UserError, match="give --image"):
        found(gateway(image="mine/front:1"))


def test_a_key_is_taken_where_one_is_asked_for() -> None:
    assert found(gateway(client="client/api-key")).key is None
    assert found(gateway(keys=True, client="client/api-key")).key == KeyReference("client", "api-key")
    assert found(gateway(keys=True), key=KeyReference("mine", "k")).key == KeyReference("mine", "k")
    with pytest.raises(UserError, match="give --key-secret NAME/KEY"):
        found(gateway(keys=True))


def test_one_release_of_several_has_to_be_named() -> None:
    both = (gateway("tandem"), gateway("other"))
    assert found(*both, release="other").url == "http://other-gateway:80"
    with pytest.raises(UserError, match=r"--release.*tandem"):
        found(*both)
    with pytest.raises(UserError, match=r"'x'.*namespace.*'serve'"):
        found(release="x")
    with pytest.raises(UserError, match=r"Tandem.*gateway"):
        found(of("triton"))


def test_a_gateway_that_is_not_ready_or_has_no_service_is_told() -> None:
    with pytest.raises(EnvironmentFault, match=r"tandem.*cluster"):
        found({**gateway(), "status": {}})
    with pytest.raises(EnvironmentFault, match=r"port.*http"):
        found(services=[service(port="admin"), service("other")])
    with pytest.raises(EnvironmentFault, match=r"see.*services"):
        found(services=None)


def policy(*kinds: str, egress: object = None, release: str = "tandem", **labels: str) -> Object:
    chosen = {"app.kubernetes.io/instance": release, **{key.replace("_", "/"): it for key, it in labels.items()}}
    return {"spec": {"podSelector": {"matchLabels": chosen}, "policyTypes": kinds, "egress": egress}}


def test_a_policy_is_made_only_where_the_releases_keep_the_pod_from_sending() -> None:
    deny = policy("Ingress", "Egress")
    own = policy("Ingress", "Egress", egress=[{}], **{"app.kubernetes.io_component": "loadtest"})
    gateways = policy("Egress", egress=[{}], **{"app.kubernetes.io_component": "gateway"})
    assert found(network_policies=[deny]).needs_policy
    assert found(network_policies=[deny, gateways]).needs_policy
    assert not found(network_policies=[deny, own]).needs_policy
    assert not found(network_policies=[policy("Ingress"), policy("Egress", release="other")]).needs_policy
    assert not found(network_policies=None).needs_policy  # cannot be seen


# -- what is made of it -------------------------------------------------------------------------------------------------------


def given(**more: Any) -> CampaignFile:
    files = {"mine.yaml": b"version: 1", "traces/a b.csv": b"0.1"}
    return CampaignFile(
        **{
            "name": "mine",
            "file": "mine.yaml",
            "files": files,
            "num_processes": 1,
            "planned_s": 3.0,
            "num_runs": 2,
            **more,
        }
    )


def test_names_become_labels_and_stay_short() -> None:
    assert job_name("tandem", "Mine: all of it", "x2x4v") == "tandem-campaign-mine-all-of-it-x2x4v"
    assert len(job_name("r" * 53, "c" * 90, "x2x4v")) <= 63
    assert job_name("tandem", "…", "x2x4v") == "tandem-campaign-x2x4v"


def test_files_have_keys_without_slashes_and_their_own_paths() -> None:
    its = job("j", found(), given(), 9)["spec"]["template"]["spec"]["volumes"][0]["configMap"]
    assert [it["path"] for it in its["items"]] == ["mine.yaml", "traces/a b.csv"]
    data = config_map("j", found(), given(), {})["binaryData"]
    assert [it["key"] for it in its["items"]] == list(data) == ["0-mine.yaml", "1-traces-a-b.csv"]


def test_the_command_runs_the_campaign_with_its_conditions() -> None:
    words = command(found(), given(fail_if=("p99_s > 0.05",)))
    assert words[:2] == ["python", "-c"]
    assert "def lines" in words[2]
    assert words[3:] == [
        *("/results", "http://tandem-gateway:80"),
        *("tandem", "campaign", "run", "/campaign/mine.yaml", "--url=http://tandem-gateway:80", "--output=/results"),
        "--fail-if=p99_s > 0.05",
    ]


def test_the_program_that_is_sent_needs_nothing_of_tandem() -> None:
    program = command(found(), given())[2]
    assert "import serving" not in program
    assert "from serving" not in program


@pytest.mark.parametrize(("processes", "cores"), [(1, "1"), (2, "3")])
def test_several_generators_have_a_core_each_and_one_for_the_one_that_leads(processes: int, cores: str) -> None:
    (container,) = job("j", found(), given(num_processes=processes), 9)["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["limits"]["cpu"] == cores


def test_its_policy_chooses_its_pod_alone() -> None:
    spec = network_policy("j", found(), {})["spec"]
    assert spec["podSelector"]["matchLabels"] == {"batch.kubernetes.io/job-name": "j"}


def test_files_that_a_config_map_cannot_hold_are_refused() -> None:
    given().check()
    with pytest.raises(UserError, match=r"big\.npz: 1,048,576.*give --image"):
        given(files={"mine.yaml": b"v", "big.npz": bytes(2**20)}).check()
    for path in ("/data/a.csv", "../a.csv"):
        with pytest.raises(UserError, match=r"campaign.*file"):
            given(files={"mine.yaml": b"v", path: b""}).check()


# -- the command line ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("payload: {data: texts}", "sends texts, made with files of the model"),
        ("kind: claims", "holds claims"),
        ("payload: {data: gone.npz}", "there is no file"),
        ("lod: {}", "did you mean"),
    ],
)
def test_a_file_that_cannot_go_there_is_refused_before_anything_is_asked(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from serving.cli import main

    file = tmp_path / "mine.yaml"
    file.write_text(f"version: 1\nname: mine\nmodel: digits\narms: [{{variant: fp32, pool: cpu}}]\n{text}\n")
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.setattr("sys.argv", ["tandem", "cluster", "campaign", str(file), f"--output={tmp_path / 'out'}"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
