"""Which pods run here? Those with the annotation bed/real that kwok gave an address; kwok leaves all else about them to this.

One stand-in for the kubelets of all nodes. Nothing is imitated that a pod cannot see: no resources, no eviction, no garbage.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cluster.bed.api import Object
from tests.cluster.bed.cluster import Bed
from tests.cluster.hybrid.container import ROOT
from tests.cluster.hybrid.pod import Pod, Say
from tests.cluster.hybrid.watch import Watch

REAL = "bed/real"
IN_THE_IMAGE = ("digits-fp32", "digits-fp16", "digits-int8")  # a checkout may hold more by now


class Kubelet:
    def __init__(self, bed: Bed, folder: Path, curves: Path, say: Say) -> None:
        self._api, self._folder, self._curves, self._say = bed.api, folder, curves, say
        self._models = folder / "image-models"
        for name in IN_THE_IMAGE:
            shutil.copytree(ROOT / "model_repo" / name, self._models / name)
        self.pods: dict[str, Pod] = {}
        self._watch = Watch(bed.api, bed.layout.certificates, "/api/v1/pods", self._changed)

    def _changed(self, it: Object, is_gone: bool) -> None:
        about = it["metadata"]
        known = self.pods.get(about["uid"])
        if known is not None:
            known.update(it, is_gone)
            if is_gone:
                del self.pods[about["uid"]]
        elif REAL in about.get("annotations", {}) and not is_gone and "nodeName" in it["spec"]:
            folder = self._folder / "pods" / about["name"]
            folder.mkdir(parents=True)
            pod = self.pods[about["uid"]] = Pod(self._api, it, folder, self._models, self._curves, self._say)
            pod.start()

    def objects(self) -> list[Object]:
        """All pods, those without a node too."""
        return self._watch.objects()

    def of(self, component: str, pool: str = "") -> list[Pod]:
        """Those that are not leaving."""
        wanted = {"app.kubernetes.io/component": component} | ({"tandem-pool": pool} if pool else {})
        return [
            pod
            for pod in list(self.pods.values())
            if "deletionTimestamp" not in pod.object["metadata"]
            and wanted.items() <= pod.object["metadata"]["labels"].items()
        ]
