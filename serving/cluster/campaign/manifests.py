"""What is created for a campaign: a Job, a ConfigMap with its files, a NetworkPolicy where the release's keeps it from sending. Pure.

The Job satisfies Pod Security `restricted`, as all pods of the chart do. Numbers without a source beside them are guesses, not measured.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from serving.cluster.campaign.target import VARIABLE, Target
from serving.cluster.objects.fields import COMPONENT, GATEWAY, LOADTEST, MANAGED_BY, NAME, PART_OF, RELEASE, Object
from serving.cluster.objects.pods import CAMPAIGN
from serving.errors import UserError

FOLDER, RESULTS = "/campaign", "/results"
CONTAINER = "campaign"
MANAGER = "tandem"  # of what is made here; what the chart makes is Helm's
MAX_FILES_BYTES = 2**20  # of a ConfigMap's data, by the API server
GRACE_S = 90  # to end a run, write the report and send what there is
KEPT_S = 86400  # a Job that is over, and its log: a day to look at it, as the chart's load test
USER = 1000  # of Tandem's images


@dataclass(frozen=True, slots=True)
class CampaignFile:
    """A campaign file that was read. `files`: it, and what it names, by path relative to it. `planned_s`: how long its runs last."""

    name: str
    file: str
    files: Mapping[str, bytes]
    num_processes: int
    planned_s: float
    num_runs: int
    fail_if: tuple[str, ...] = ()

    def check(self) -> None:
        """Raises UserError for what a ConfigMap cannot hold."""
        total_bytes = sum(len(it) for it in self.files.values())
        if total_bytes > MAX_FILES_BYTES:
            largest = max(self.files, key=lambda name: len(self.files[name]))
            raise UserError(
                f"{self.file} and the files it names are {total_bytes:,} bytes ({largest}: {len(self.files[largest]):,}), and a ConfigMap "
                f"holds {MAX_FILES_BYTES:,}; put them into an image of your own, and give --image"
            )
        for name in self.files:
            if name.startswith("/") or ".." in name.split("/"):
                raise UserError(f"{self.file} names {name}, which lies elsewhere: keep it beside the campaign file")


def job_name(release: str, campaign: str, suffix: str) -> str:
    """At most 63 letters, because it becomes a label."""
    plain = re.sub(r"[^a-z0-9]+", "-", campaign.lower()).strip("-")[:20].strip("-")
    return "-".join(filter(None, (release[:25].strip("-"), "campaign", plain, suffix)))


def labels(it: Target) -> dict[str, str]:
    return {
        NAME: it.name,
        RELEASE: it.release,
        COMPONENT: LOADTEST,
        PART_OF: "tandem",
        MANAGED_BY: MANAGER,
    }


def job(name: str, target: Target, given: CampaignFile, timeout_s: int) -> Object:
    template = {
        "metadata": {
            "labels": labels(target),
            # Moved to another node it would be void.
            "annotations": {
                "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
                "karpenter.sh/do-not-disrupt": "true",
            },
        },
        "spec": _pod(name, target, given),
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "labels": labels(target), "annotations": {CAMPAIGN: given.name}},
        "spec": {
            "backoffLimit": 0,  # a run that was cut off is void, and is not repeated by itself
            "activeDeadlineSeconds": timeout_s,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": template,
        },
    }


def _pod(name: str, target: Target, given: CampaignFile) -> Object:
    keys = _keys(given)
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "imagePullSecrets": [{"name": it} for it in target.pull_secrets],
        "affinity": {"podAntiAffinity": _away_from_servers(target)},
        "containers": [_container(target, given)],
        "volumes": [
            {
                "name": "campaign",
                "configMap": {"name": name, "items": [{"key": key, "path": path} for path, key in keys.items()]},
            },
            {"name": "results", "emptyDir": {"sizeLimit": "2Gi"}},  # about 100 bytes a request
            {"name": "tmp", "emptyDir": {"sizeLimit": "256Mi"}},
        ],
    }


def _container(target: Target, given: CampaignFile) -> Object:
    # One core for each of Locust's processes, and one for the process that leads several; a limit, because some quotas ask for one.
    num_cores = str(given.num_processes + (given.num_processes > 1))
    amount = {"cpu": num_cores, "memory": f"{512 + 256 * given.num_processes}Mi"}
    environment: list[Object] = [{"name": "PYTHONUNBUFFERED", "value": "1"}, {"name": "HOME", "value": "/tmp"}]
    if target.key:
        reference = {"name": target.key.secret, "key": target.key.key}
        environment.append({"name": VARIABLE, "valueFrom": {"secretKeyRef": reference}})
    return {
        "name": CONTAINER,
        "image": target.image,
        "imagePullPolicy": target.pull_policy,
        "command": command(target, given),
        "env": environment,
        "resources": {"requests": amount, "limits": amount},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": "campaign", "mountPath": FOLDER, "readOnly": True},
            {"name": "results", "mountPath": RESULTS},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    }


def command(target: Target, given: CampaignFile) -> list[str]:
    program = resources.files("serving.cluster.campaign").joinpath("pod_program.py").read_text(encoding="utf-8")
    run = ["tandem", "campaign", "run", f"{FOLDER}/{given.file}", f"--url={target.url}", f"--output={RESULTS}"]
    return ["python", "-c", program, RESULTS, target.url, *run, *(f"--fail-if={it}" for it in given.fail_if)]


def _away_from_servers(target: Target) -> Object:
    """A generator on a server's own cores takes its share of them; where there is no other node, it does."""
    terms = [
        {
            "weight": 100,
            "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname",
                "labelSelector": {"matchLabels": {RELEASE: target.release, COMPONENT: component}},
            },
        }
        for component in ("triton", GATEWAY)
    ]
    return {"preferredDuringSchedulingIgnoredDuringExecution": terms}


def _keys(given: CampaignFile) -> dict[str, str]:
    """A ConfigMap's key for each path: keys hold no slash."""
    return {path: f"{number}-{re.sub(r'[^-._a-zA-Z0-9]', '-', path)}"[:253] for number, path in enumerate(given.files)}


def config_map(name: str, target: Target, given: CampaignFile, owner: Object) -> Object:
    keys = _keys(given)
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "labels": labels(target), "ownerReferences": [owner]},
        "immutable": True,
        "binaryData": {keys[path]: base64.b64encode(content).decode("ascii") for path, content in given.files.items()},
    }


def network_policy(name: str, target: Target, owner: Object) -> Object:
    """Out to the gateway and to name servers, as the chart's own load test."""
    gateway = {NAME: target.name, RELEASE: target.release, COMPONENT: GATEWAY}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "labels": labels(target), "ownerReferences": [owner]},
        "spec": {
            "podSelector": {"matchLabels": {"batch.kubernetes.io/job-name": name}},
            "policyTypes": ["Ingress", "Egress"],
            "egress": [
                {
                    "to": [{"podSelector": {"matchLabels": gateway}}],
                    "ports": [{"port": "http", "protocol": "TCP"}],
                },
                {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]},
            ],
        },
    }


def owner(job: Object) -> Object:
    """So that what was made for a Job goes with it."""
    return {"apiVersion": "batch/v1", "kind": "Job", "name": job["metadata"]["name"], "uid": job["metadata"]["uid"]}
