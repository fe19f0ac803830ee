"""What `tandem cluster preflight` checks, in which order, and how that looks on a terminal and as JSON; its options and exit code."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import yaml

from serving.cluster.api import connect
from serving.cluster.objects.fields import one_line
from serving.cluster.objects.gpus import is_gpu
from serving.cluster.preflight import checks
from serving.cluster.preflight.checks import exit_status
from serving.cluster.preflight.facts import Facts, collect
from serving.cluster.preflight.gpus import gpu_findings
from serving.cluster.preflight.quotas import limit_ranges, quotas
from serving.cluster.preflight.requirements import DEFAULT, Requirements, requirements, with_gpu_pool
from serving.documents.findings import Finding
from serving.errors import UserError


def run(
    *,
    context: str | None,
    namespace: str | None,
    rendered: Path | None,
    gpu: str | None,
    image_pull_secret: tuple[str, ...],
    as_json: bool,
) -> int:
    wanted = requirements_of(rendered, gpu, image_pull_secret)
    connection = connect(context, namespace)
    with connection.api:
        found = findings(collect(connection, wanted), wanted)
    code = exit_status(found)
    if as_json:
        listed = [dataclasses.asdict(it) for it in found]
        print(connection.document({"for": wanted.source, "is_good": code == 0, "findings": listed}))
    else:
        print("\n".join([f"{connection}, for {wanted.source}", *(it.line for it in found)]))
    return code


def findings(facts: Facts, wanted: Requirements) -> tuple[Finding, ...]:
    """In the order in which somebody would mend them."""
    return (
        checks.server_version(facts.server_version),
        checks.namespace(facts),
        *checks.rights(facts),
        *checks.pod_security(facts),
        checks.nodes(facts.cluster.nodes),
        *gpu_findings(facts, wanted),
        quotas(facts, wanted),
        limit_ranges(facts, wanted),
        checks.storage(facts, wanted),
        *checks.images(facts),
        *checks.apis(facts, wanted),
        *checks.autoscaling(facts),
        checks.network_policies(wanted),
    )


def requirements_of(rendered: Path | None, gpu: str | None, pull_secrets: tuple[str, ...]) -> Requirements:
    found = DEFAULT if rendered is None else _read(rendered)
    if gpu is not None:
        if not is_gpu(gpu):
            raise UserError(f"--gpu {gpu} is no resource of NVIDIA's device plugin; nvidia.com/gpu is the usual one")
        found = with_gpu_pool(found, gpu)
    return dataclasses.replace(found, pull_secrets=found.pull_secrets | set(pull_secrets))


def _read(path: Path) -> Requirements:
    """The objects of a file, or of standard input, as `helm template` prints them."""
    name = "standard input" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
        documents = list(yaml.safe_load_all(text))
        if not any(documents):
            raise UserError(f"--rendered {name} holds no objects; give it what `helm template` prints")
        return requirements(documents, name)
    except OSError as error:
        raise UserError(f"--rendered {name} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
        said = one_line(error)[:200]
        raise UserError(f"--rendered {name} is not what `helm template` prints: {said}") from None
