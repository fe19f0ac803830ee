"""What happens, in which order, and what the clients saw of it: the phases of the run, and the report.

Nobody says how many Tritons there are to be: only the load's rate is turned, and the scaler of the release and Karpenter do the rest. Rule: what is done to the cluster is what an operator, a cloud or bad luck does, through the API server or to a process.
"""

from __future__ import annotations

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from serving.local.devices import processor_name
from tests.cluster.bed.api import Answered, Object, until
from tests.cluster.bed.cluster import Bed, Failed, is_true
from tests.cluster.hybrid import chart, moments
from tests.cluster.hybrid.channels import NUM_CHANNELS, Channels, message
from tests.cluster.hybrid.chart import CPU, CPU_REPLICAS, GPU, HIGH_RPS, LOW_RPS, NAMESPACE, RELEASE
from tests.cluster.hybrid.container import ROOT
from tests.cluster.hybrid.endpoints import Known
from tests.cluster.hybrid.excused import GATEWAY_KILLED, UPGRADED
from tests.cluster.hybrid.kubelet import REAL, Kubelet
from tests.cluster.hybrid.leaving import Leaving
from tests.cluster.hybrid.load import Load, summary
from tests.cluster.hybrid.moments import (
    ALLOWED,
    CLOSED,
    CONSOLIDATION,
    FALLS,
    MAINTENANCE,
    NOTICE_S,
    RISES,
    SPOT,
    TOLD,
)
from tests.cluster.hybrid.names import TTL_S, Names, ready_addresses
from tests.cluster.hybrid.pod import Pod
from tests.cluster.hybrid.recorder import CLAIMS, Recorder
from tests.cluster.hybrid.scalers import Scalers
from tests.cluster.hybrid.watch import Watch
from tests.cluster.release import PROFILES, Release

NUM_GATEWAYS = 2  # the chart's default
SCALER_KILLED = "both scalers are killed in turn"
MAINTAINED, DELETED = "a GPU node is drained for maintenance", "a GPU node is deleted"
CONSOLIDATED, SPOT_NOTICE = "Karpenter moves to a cheaper node", "a spot notice"


@dataclass
class Story:
    bed: Bed
    kubelet: Kubelet
    slices: Watch
    load: Load
    scalers: Scalers
    recorder: Recorder
    say: Callable[[str], None]
    phases: dict[str, tuple[float, float]] = field(default_factory=dict)
    marks: dict[str, float] = field(default_factory=dict)  # seconds since the recorder began
    cold_starts: list[Object] = field(default_factory=list)
    hand_overs_s: list[float] = field(default_factory=list)  # from one scaler that is killed to the other
    is_api_readable: bool | None = None  # by the scaler

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        self.say(f"== {name}")
        began = time.monotonic()
        try:
            yield
        finally:
            self.phases[name] = (began, time.monotonic())

    def seen(self) -> Object:
        """Of each phase what was due meanwhile, once all of it is answered."""
        return {
            name: {"at_s": round(began - self.recorder.began, 1), "seconds": round(end - began, 1)}
            | summary([it for it in self.load.rows if began <= self.load.began + it.due_s < end])
            for name, (began, end) in self.phases.items()
        }

    def mark(self, name: str) -> None:
        self.marks[name] = round(time.monotonic() - self.recorder.began, 2)
        self.say(f"-- {name}")

    def release(self, **more: object) -> Release:
        return Release(self.bed, NAMESPACE, PROFILES["slim-images"], chart.values(**more), RELEASE)

    def warm_up(self, **more: object) -> None:
        with self.phase("install"):
            self.release(**more).install()
            until(lambda: self.load.num_endpoints() == NUM_GATEWAYS, "nodes know both gateways", 30)
            self.load.start()
        with self.phase("warm on the CPU"):
            time.sleep(5)
            until(lambda: self.wanted() == 0, "the scaler wants no GPU", 60)
            until(
                lambda: len(self.kubelet.of("triton", CPU)) == CPU_REPLICAS[0] and self.is_settled(),
                "the CPU pool is there",
                60,
            )
            self.is_api_readable = self.ask_scaler("/status")["is_api_readable"]

    def play(self) -> None:
        self.warm_up()
        with self.phase(RISES):
            self.load.rate_rps = HIGH_RPS
            self.mark(RISES)
            until(lambda: self.answers_from(GPU), "answers from the GPU pool", 120)
        with self.phase("it takes over"):
            until(lambda: self.answers_from(GPU, share=0.9), "nearly all answers from the GPU pool", 40)
            self.cold_starts = self.ask_scaler("/cold-starts")["cold_starts"]
        self.break_things()
        with self.phase(SPOT_NOTICE):
            self.notice()
        with self.phase(FALLS):
            self.load.rate_rps = LOW_RPS
            self.mark(FALLS)
            until(lambda: self.wanted() == 0, "the scaler wants no GPU", 90)
            until(
                lambda: not self.bed.api.items(CLAIMS) and not self.kubelet.of("triton", GPU), "its nodes are gone", 90
            )
        with self.phase("on the CPU again"):
            time.sleep(2)

    def break_things(self) -> None:
        with self.phase(MAINTAINED):
            self.maintain()
        with self.phase(DELETED):
            pod = self.gpu_triton()
            self.bed.api.delete(f"/api/v1/nodes/{pod.node}")
            until(lambda: self.is_replaced(pod), "its Triton runs elsewhere", 90)
            until(lambda: self.answers_from(GPU), "answers from the GPU pool", 30)
        with self.phase("the API server is restarted"):
            self.bed.stop("kube-apiserver")
            time.sleep(3)
            self.bed.start("kube-apiserver")
        # Early: one that has just begun lets no server go for a while, because it cannot know how long that has been there.
        with self.phase(SCALER_KILLED):
            self.kill_leader()
            leaving = self.allow_cheaper_nodes()  # about which Karpenter thinks for 17 to 30 s
            self.kill_leader()
        with self.phase(CONSOLIDATED):
            self.see_off(leaving, 120)
            until(lambda: self.answers_from(GPU), "answers from the cheaper node", 60)
        with self.phase(GATEWAY_KILLED):
            time.sleep(0.5)  # what is under way when it dies was due in this phase
            last = self.load.rows[-1].endpoint.partition(":")[0]
            self.kill(next(it for it in self.kubelet.of("gateway") if it.ip == last))
            until(self.is_every_channel_back, "its gRPC clients are connected again", 30)
        with self.phase("a Triton falls silent"):
            until(lambda: self.answers_from(GPU, share=0.9), "most answers from the GPU pool", 40)
            pod = self.gpu_triton()
            for it in (processes := pod.processes()):
                it.suspend()
            until(lambda: self.answers_from(CPU) and not self.answers_from(GPU), "the CPU answers alone", 40)
        with self.phase("and dies"):
            for it in processes:
                it.kill()  # as when the container's first process crashes; the kubelet starts it again at the same address
            until(lambda: not self.is_settled(), "its death is noticed", 10)
            until(lambda: self.is_settled() and self.answers_from(GPU), "it is back", 60)
        with self.phase(UPGRADED):
            rolled = {"rolled": "out", REAL: "true"}
            self.release(**{"gateway.podAnnotations": rolled, f"pools.{CPU}.podAnnotations": rolled}).upgrade()
            until(self.is_settled, "no pod leaves any more", 60)

    def kill_leader(self) -> None:
        """Of two scalers the one that sets replicas; the other follows, and both are ready again afterwards."""
        until(lambda: self.scalers.leader is not None, "one scaler leads", 30)
        before, address = self.lease_holder(), str(self.scalers.leader).partition(":")[0]
        killed = next(it for it in self.kubelet.of("scaler") if it.ip == address)
        for it in killed.processes():
            it.kill()
        began = time.monotonic()
        until(lambda: self.lease_holder() not in ("", before), "another scaler leads", 30, every_s=0.1)
        self.hand_overs_s.append(round(time.monotonic() - began, 2))
        self.say(f"-- another scaler leads after {self.hand_overs_s[-1]:.1f} s")
        until(lambda: not self.is_settled(), "its death is noticed", 10)
        until(self.is_settled, "it is back", 60)

    def lease_holder(self) -> str:
        lease = self.bed.api.get(f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/{RELEASE}-scaler")
        return str(lease["spec"].get("holderIdentity") or "")

    def kill(self, pod: Pod) -> None:
        for it in pod.processes():
            it.kill()
        until(lambda: not self.is_settled(), "its death is noticed", 10)
        until(self.is_settled, "it is back", 60)

    def maintain(self) -> None:
        """What an operator does before a machine is worked on."""
        leaving = self.watch_leaving(MAINTENANCE, self.gpu_triton())
        self.mark(f"{MAINTENANCE}: {TOLD}")
        self.bed.kubectl("cordon", leaving.pod.node)
        words = ("--ignore-daemonsets", "--delete-emptydir-data", f"--timeout={NOTICE_S:.0f}s")
        self.bed.kubectl("drain", leaving.pod.node, *words)
        self.see_off(leaving, 10)
        until(lambda: self.answers_from(GPU), "answers from a new node", 90)

    def allow_cheaper_nodes(self) -> Leaving:
        """Karpenter buys one, waits until it is ready, and deletes the claim of the one that is dearer."""
        pod = self.gpu_triton()
        leaving = self.watch_leaving(CONSOLIDATION, pod, {TOLD: lambda: self.is_given_up(pod.node)})
        self.mark(f"{CONSOLIDATION}: {ALLOWED}")
        chart.allow_cheaper_nodes(self.bed)
        return leaving

    def notice(self) -> None:
        """A cloud wants its machine back: Karpenter's interruption controller deletes the claim, and the rest, taint and evictions inside the
        notice, is done by the part of Karpenter that runs here."""
        until(lambda: len(self.kubelet.of("triton", GPU)) == 1 and self.answers_from(GPU), "one GPU Triton answers", 60)
        leaving = self.watch_leaving(SPOT, self.gpu_triton())
        claim = self.recorder.claim(leaving.pod.node)
        assert claim is not None, f"{leaving.pod.node} has no claim"
        self.mark(f"{SPOT}: {TOLD}")
        self.bed.api.delete(f"{CLAIMS}/{claim['metadata']['name']}")
        self.see_off(leaving, 60)

    def watch_leaving(self, kind: str, pod: Pod, steps: dict[str, Callable[[], bool]] | None = None) -> Leaving:
        more = {CLOSED: lambda: self.is_closed(pod.node), **(steps or {})}
        leaving = Leaving(pod, lambda: self.kubelet.of("gateway"), lambda what: self.mark(f"{kind}: {what}"), more)
        leaving.start()
        return leaving

    def see_off(self, leaving: Leaving, timeout_s: float) -> None:
        until(lambda: leaving.has_ended(0.0), f"{leaving.pod.name} has ended", timeout_s)

    def gpu_triton(self) -> Pod:
        (pod,) = self.kubelet.of("triton", GPU)
        return pod

    def is_closed(self, node: str) -> bool:
        """To new pods, by who drains it or by Karpenter."""
        it = self.recorder.node(node)
        taints = {of["key"] for of in it["spec"].get("taints") or ()} if it else set()
        return bool(taints & {"node.kubernetes.io/unschedulable", "karpenter.sh/disrupted"})

    def is_given_up(self, node: str) -> bool:
        claim = self.recorder.claim(node)
        return claim is None or "deletionTimestamp" in claim["metadata"]

    def wanted(self) -> float | None:
        return self.scalers.wanted.get(GPU)

    def answers_from(self, pool: str, share: float = 0.0) -> bool:
        """More than a share of what is due in a second, lately."""
        now_s, rate = self.load.elapsed_s(), self.load.rate_rps
        last = [it.pool for it in self.load.rows[-int(3 * rate) :] if it.due_s > now_s - 1.5]
        return last.count(pool) > share * rate

    def is_every_channel_back(self) -> bool:
        """Two good answers in a row for each, lately: they are asked in turn."""
        last = [it for it in self.load.rows[-100:] if it.is_grpc][-2 * NUM_CHANNELS :]
        return not any(it.is_error for it in last)

    def is_replaced(self, gone: Pod) -> bool:
        found = self.kubelet.of("triton", GPU)
        return found != [gone] and len(found) == 1 and is_true(found[0].object, "Ready")

    def is_settled(self) -> bool:
        pods = list(self.kubelet.pods.values())
        return all("deletionTimestamp" not in it.object["metadata"] and is_true(it.object, "Ready") for it in pods)

    def ask_scaler(self, path: str) -> Object:
        address = ready_addresses(self.slices.objects(), NAMESPACE, f"{RELEASE}-scaler", "metrics")[0]
        with urllib.request.urlopen(f"http://{address}{path}", timeout=5) as answer:
            found: Object = json.load(answer)
            return found

    def answers(self) -> list[list[int]]:
        """Of each second of the recorder's: its number, what was due and answered by the CPU, by the GPU, and what failed."""
        shift_s = self.load.began - self.recorder.began
        seconds = Counter((int(it.due_s + shift_s), "error" if it.is_error else it.pool) for it in list(self.load.rows))
        last = max((at for at, _ in seconds), default=0)
        return [[at, *(seconds[at, kind] for kind in (CPU, GPU, "error"))] for at in range(last + 1)]


def play(
    bed: Bed,
    folder: Path,
    say: Callable[[str], None],
    dns_ttl_s: float = TTL_S,
    act: Callable[[Story], None] = Story.play,
) -> Object:
    """The report. `say` is told what happens as it happens."""
    began = time.monotonic()
    timeline: list[tuple[float, str]] = []

    def told(line: str) -> None:
        timeline.append((round(time.monotonic() - began, 1), line))
        say(f"{timeline[-1][0]:6.1f} {line}")

    story = begin(bed, folder, told, dns_ttl_s)
    failed = ""
    try:
        act(story)
    except (AssertionError, Failed, Answered, ValueError, OSError) as error:
        failed = f"{type(error).__name__}: {error}"
        told(f"failed: {failed}")
    finally:
        if story.load.is_alive():
            story.load.stop()
        story.recorder.stop()
    rows = story.load.rows
    report: Object = {
        "failed": failed,
        "day": time.strftime("%Y-%m-%d", time.gmtime()),
        "processor": processor_name(),
        "seconds": round(time.monotonic() - began, 1),
        "phases": story.seen(),
        "all": summary(rows),
        "errors": [(round(it.due_s, 2), it.said, it.endpoint, it.pool) for it in rows if it.is_error][:200],
        "marks": story.marks,
        "first_gpu_answer_s": min((it.due_s + it.took_s for it in rows if it.pool == GPU), default=None),
        "load_began_s": round(story.load.began - story.recorder.began, 2),
        "arrivals_s": [round(it.due_s, 3) for it in sorted(rows, key=lambda it: it.due_s)],
        "answers": story.answers(),
        "looks": story.recorder.told(),
        "cold_starts": story.cold_starts,
        "hand_overs_s": story.hand_overs_s,
        "is_api_readable": story.is_api_readable,
        "timeline": timeline,
    }
    return report | {"moments": [asdict(it) for it in moments.of(report)]}


def begin(bed: Bed, folder: Path, told: Callable[[str], None], dns_ttl_s: float) -> Story:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    bed.api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE, "labels": labels}})
    until(lambda: bed.api.items(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"), "the default account")
    chart.make_node_pool(bed)
    curves = folder / "curves"
    curves.mkdir()
    for pool, file in chart.curves().items():
        (curves / f"{pool}.json").write_text(json.dumps(file))
    slices = Watch(bed.api, bed.layout.certificates, "/apis/discovery.k8s.io/v1/endpointslices", lambda *_: None)

    def addresses(service: str, port: str) -> list[str]:
        return ready_addresses(slices.objects(), NAMESPACE, service, port)

    Names(lambda namespace, service: ready_addresses(slices.objects(), namespace, service), dns_ttl_s)
    body = (ROOT / "model_repo" / "digits-fp32" / "sample.json").read_bytes()
    known = Known(lambda: {port: addresses(f"{RELEASE}-gateway", port) for port in ("http", "grpc")})
    load = Load(known, Channels(known, message("digits", body)), "/v2/models/digits/infer", body, LOW_RPS)
    kubelet = Kubelet(bed, folder, curves, told)
    scalers = Scalers(lambda: addresses(f"{RELEASE}-scaler", "metrics"))
    recorder = Recorder(bed, scalers, kubelet.objects, lambda: load.rate_rps if load.is_alive() else 0.0)
    scalers.start()
    recorder.start()
    return Story(bed, kubelet, slices, load, scalers, recorder, told)
