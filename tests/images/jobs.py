"""What a kubelet makes of a campaign's Job for a pod of `pods`: its files as volumes have them, its variables, its command.

Read off the objects that `tandem cluster campaign` would create, so that what is started here is what is started there.
"""

from __future__ import annotations

import contextlib
from base64 import b64decode
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.cluster.campaign import manifests
from serving.cluster.campaign.manifests import CampaignFile
from serving.cluster.campaign.target import Target

from .installs import writable
from .pods import Container, Image, Pod

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Started:
    job: Object
    container: Container


@contextlib.contextmanager
def campaign(
    pod: Pod, image: Image, target: Target, given: CampaignFile, secrets: Mapping[str, Mapping[str, str]], folder: Path
) -> Iterator[Started]:
    """Runs the Job's container until the end of the block; its log and its volumes lie in `folder`."""
    job = manifests.job("j", target, given, timeout_s=900)
    files = manifests.config_map("j", target, given, manifests.owner({"metadata": {"name": "j", "uid": "u"}}))
    spec = job["spec"]["template"]["spec"]
    (it,) = spec["containers"]
    volumes = {each["name"]: each for each in spec["volumes"]}
    mounts = {
        each["mountPath"]: _volume(volumes[each["name"]], files, folder / each["name"])
        + (":ro" if each.get("readOnly") else "")
        for each in it["volumeMounts"]
    }
    command = ["env", *(_variable(each, secrets) for each in it["env"]), *it["command"], *it.get("args", ())]
    with pod.container(image, command, mounts, folder / "log") as container:
        yield Started(job, container)


def _volume(volume: Object, files: Object, folder: Path) -> str:
    if "configMap" not in volume:
        return writable(folder)
    # As a kubelet writes it: the files in a folder of their own, and links at the top through one that it can turn at once.
    data = folder / "..2026_11_22"
    for it in volume["configMap"]["items"]:
        path = data / it["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b64decode(files["binaryData"][it["key"]]))
    (folder / "..data").symlink_to(data.name)
    for at_top in data.iterdir():
        (folder / at_top.name).symlink_to(Path("..data") / at_top.name)
    return str(folder)


def _variable(it: Object, secrets: Mapping[str, Mapping[str, str]]) -> str:
    if "value" in it:
        return f"{it['name']}={it['value']}"
    of = it["valueFrom"]["secretKeyRef"]
    return f"{it['name']}={secrets[of['name']][of['key']]}"
