"""An install without any value on a real API server: the hook's stored command runs as a process, by its own token and rights, while Helm waits.

The pod of the hook is the only one that is not simulated: the test does for it what a kubelet does.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from serving.gateway.access import Access, table_of
from serving.keys.key_file import parse
from tests.cluster.bed.api import Object, until
from tests.cluster.bed.cluster import Bed, Failed
from tests.cluster.hybrid.container import ACCOUNT
from tests.cluster.release import Release

pytestmark = pytest.mark.cluster
ROOT = Path(__file__).resolve().parents[2]
NAME = "tandem-keys"
REAL: Object = {
    "auth.insecureNoAuth": False,
    "auth.job.podAnnotations": {"bed/real": ""},
}  # kwok leaves its pod to the test
IN_ITS_PLACE = f'mount -t tmpfs tmpfs /run && mkdir -p {ACCOUNT} && mount --bind "$0" {ACCOUNT} && exec "$@"'


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    said: str


class HookKubelet:
    """Runs pods of the hook's Job as processes."""

    def __init__(self, bed: Bed, namespace: str, folder: Path) -> None:
        self.bed, self.namespace, self.folder = bed, namespace, folder
        self._done: set[str] = set()

    def pod(self) -> Object | None:
        for it in self.bed.api.items(f"/api/v1/namespaces/{self.namespace}/pods"):
            about = it["metadata"]
            is_keys = about["labels"].get("app.kubernetes.io/component") == "keys"
            if is_keys and about["uid"] not in self._done and it.get("status", {}).get("podIP"):
                return it
        return None

    def account(self, pod: Object) -> Path:
        """The volume that every pod with a token has."""
        name, about = pod["spec"]["serviceAccountName"], pod["metadata"]
        of = {"kind": "Pod", "apiVersion": "v1", "name": about["name"], "uid": about["uid"]}
        path = f"/api/v1/namespaces/{self.namespace}/serviceaccounts/{name}/token"
        token = self.bed.api.create(path, {"spec": {"expirationSeconds": 3600, "boundObjectRef": of}})["status"][
            "token"
        ]
        folder = self.folder / about["name"]
        folder.mkdir()
        (folder / "token").write_text(token)
        (folder / "ca.crt").write_bytes((self.bed.layout.certificates / "ca.crt").read_bytes())
        (folder / "namespace").write_text(self.namespace)
        return folder

    def run_one(self) -> Ran:
        pod = until(self.pod, "the hook's pod", 120)
        self._done.add(pod["metadata"]["uid"])
        (container,) = pod["spec"]["containers"]
        assert container["command"][0] == "tandem"
        words = [sys.executable, "-m", "serving", *container["command"][1:]]
        ran = self.run(words, self.account(pod))
        phase = "Failed" if ran.code else "Succeeded"
        ended = {"terminated": {"exitCode": ran.code, "reason": phase}}
        status = {
            "name": container["name"],
            "image": container["image"],
            "imageID": "",
            "ready": False,
            "restartCount": 0,
        }
        path = f"/api/v1/namespaces/{self.namespace}/pods/{pod['metadata']['name']}/status"
        self.bed.api.merge(path, {"status": {"phase": phase, "containerStatuses": [{**status, "state": ended}]}})
        return ran

    def run(self, words: list[str], account: Path) -> Ran:
        is_root = os.getuid() == 0
        unshare = [
            "unshare",
            "--mount",
            *([] if is_root else ["--map-root-user"]),
            "sh",
            "-c",
            IN_ITS_PLACE,
            str(account),
        ]
        at = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.bed.layout.ports.api)}
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", **at}
        done = subprocess.run(
            [*unshare, *words], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=120
        )
        return Ran(done.returncode, done.stdout + done.stderr)


@pytest.fixture
def kubelet(bed: Bed, namespace: str, tmp_path: Path) -> HookKubelet:
    return HookKubelet(bed, namespace, tmp_path)


@contextmanager
def beside(work: object, *words: object) -> Iterator[Future[str]]:
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(work, *words)  # type: ignore[arg-type]


def entries(bed: Bed, namespace: str) -> dict[str, bytes]:
    found = bed.api.get(f"/api/v1/namespaces/{namespace}/secrets/{NAME}")
    return {entry: b64decode(text) for entry, text in found["data"].items()}


def test_an_install_without_any_value_makes_keys_once_and_nothing_changes_them(
    bed: Bed, namespace: str, kubelet: HookKubelet
) -> None:
    release = Release(bed, namespace, more=REAL)
    with beside(release.install) as installing:
        ran = kubelet.run_one()
        said = installing.result()
    assert ran.code == 0, ran.said
    made = entries(bed, namespace)
    keys = {key.name: key for key in parse(made["keys.json"], "the secret")}
    access = Access(table_of(keys.values()))
    for entry, scopes in (("api-key", {"infer", "metrics"}), ("admin-key", {"infer", "admin", "metrics"})):
        assert keys[entry].scopes == scopes
        assert access.caller(b"Bearer " + made[entry], None).scopes == scopes
        assert made[entry].decode() not in ran.said + said + made["keys.json"].decode()
    assert f"get secret {NAME}" in said
    # What was there for the hook alone is gone, and the Secret is nobody's to prune: no release's, no application's of Argo CD's.
    for kind in (
        "jobs.batch",
        "serviceaccounts",
        "roles.rbac.authorization.k8s.io",
        "networkpolicies.networking.k8s.io",
    ):
        until(
            lambda kind=kind: NAME not in bed.kubectl("get", kind, "-n", namespace, "-o", "name"),
            f"no {kind} of the hook",
        )
    about = bed.api.get(f"/api/v1/namespaces/{namespace}/secrets/{NAME}")["metadata"]
    assert "app.kubernetes.io/instance" not in about["labels"]
    assert not any(it.startswith("meta.helm.sh/") for it in about.get("annotations", {}))
    with beside(release.upgrade) as upgrading:
        assert kubelet.run_one().code == 0
        upgrading.result()
    assert entries(bed, namespace) == made
    release.uninstall()
    assert entries(bed, namespace) == made
    with beside(release.install) as installing:
        assert kubelet.run_one().code == 0
        installing.result()
    assert entries(bed, namespace) == made
    release.uninstall()


@pytest.fixture
def account(bed: Bed, namespace: str, tmp_path: Path) -> Path:
    """What the hook's pod finds; its objects are applied as Argo CD does, which renders without a cluster."""
    rendered = bed.helm(
        "template",
        "tandem",
        str(ROOT / "helm" / "tandem"),
        "-n",
        namespace,
        "-s",
        "templates/keys/hook.yaml",
    )
    bed.kubectl("apply", "-n", namespace, "-f", "-", stdin=rendered)
    (tmp_path / "token").write_text(bed.kubectl("create", "token", NAME, "-n", namespace))
    (tmp_path / "ca.crt").write_bytes((bed.layout.certificates / "ca.crt").read_bytes())
    (tmp_path / "namespace").write_text(namespace)
    return tmp_path


def words(secret: str = NAME) -> list[str]:
    return [sys.executable, "-m", "serving", "cluster", "keys", f"--secret={secret}"]


def test_its_account_may_make_that_secret_and_no_other(
    bed: Bed, namespace: str, kubelet: HookKubelet, account: Path
) -> None:
    other = kubelet.run(words("others"), account)
    assert (other.code, "forbidden" in other.said or "may not" in other.said) == (3, True), other.said
    for verb in ("list", "watch", "delete", "update"):
        user = f"--as=system:serviceaccount:{namespace}:{NAME}"
        with pytest.raises(Failed, match="no"):
            bed.kubectl("auth", "can-i", verb, f"secrets/{NAME}", user, "-n", namespace)
    assert kubelet.run(words(), account).code == 0
    assert set(entries(bed, namespace)) == {"keys.json", "api-key", "admin-key"}


def test_of_several_at_once_one_makes_the_keys(bed: Bed, namespace: str, kubelet: HookKubelet, account: Path) -> None:
    with ThreadPoolExecutor(3) as pool:
        ran = list(pool.map(lambda _: kubelet.run([*words(), "--json"], account), range(3)))
    assert [it.code for it in ran] == [0, 0, 0], [it.said for it in ran]
    told = [json.loads(it.said) for it in ran]
    assert sorted(it["is_made"] for it in told) == [False, False, True]
    assert all((it["secret"], it["namespace"]) == (NAME, namespace) for it in told)
    assert all(set(it["entries"]) == set(entries(bed, namespace)) for it in told)
    made = entries(bed, namespace)
    assert {key.name for key in parse(made["keys.json"], "the secret")} == {"api-key", "admin-key"}
    about = bed.api.get(f"/api/v1/namespaces/{namespace}/secrets/{NAME}")["metadata"]
    assert len(about["managedFields"]) == 1


def test_a_secret_that_lacks_a_key_is_left_alone_and_told(
    bed: Bed, namespace: str, kubelet: HookKubelet, account: Path
) -> None:
    mine = {"metadata": {"name": NAME}, "stringData": {"keys.json": "mine"}}
    bed.api.create(f"/api/v1/namespaces/{namespace}/secrets", mine)
    ran = kubelet.run(words(), account)
    assert (ran.code, "admin-key" in ran.said) == (2, True), ran.said
    assert entries(bed, namespace) == {"keys.json": b"mine"}


def test_a_key_is_added_by_the_commands_of_the_page(
    bed: Bed, namespace: str, kubelet: HookKubelet, account: Path, tmp_path: Path
) -> None:
    assert kubelet.run(words(), account).code == 0
    before = entries(bed, namespace)
    _, _, rest = (ROOT / "docs" / "keys.md").read_text().partition("leave its other entries:\n\n")
    commands = "\n".join(line.strip() for line in rest.partition("\n\n")[0].splitlines())
    assert commands.count("\n") == 2
    admin = bed.layout.certificates / "admin"
    user = {"client-certificate": f"{admin}.crt", "client-key": f"{admin}.key"}
    (tmp_path / "kubeconfig").write_text(json.dumps(bed.kubeconfig_of(user, namespace=namespace)))
    programs = [str(bed.layout.programs.folder), str(Path(sys.executable).parent), os.environ["PATH"]]
    environment = {"PATH": ":".join(programs), "HOME": str(tmp_path), "KUBECONFIG": str(tmp_path / "kubeconfig")}
    done = subprocess.run(["bash", "-euo", "pipefail", "-c", commands], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)  # fmt: skip
    assert done.returncode == 0, done.stderr
    after = entries(bed, namespace)
    assert {key.name for key in parse(after["keys.json"], "the secret")} == {"api-key", "admin-key", "shop"}
    assert {name: after[name] for name in ("api-key", "admin-key")} == {
        name: before[name] for name in ("api-key", "admin-key")
    }


def test_preflight_asks_for_no_secret_that_the_hook_makes(bed: Bed, namespace: str) -> None:
    chart = ROOT / "helm" / "tandem"
    rendered = bed.helm("template", "tandem", str(chart), "-n", namespace)
    done = subprocess.run(
        [sys.executable, "-m", "serving", "cluster", "preflight", "--namespace", namespace, "--rendered", "-", "--json"],
        input=rendered, capture_output=True, text=True, timeout=120, env={**os.environ, "KUBECONFIG": str(bed.layout.kubeconfig)},
    )  # fmt: skip
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert NAME not in json.dumps(found["findings"])
