"""How many servers does a policy want now?

Only `wake.next_target` is what the product does; the rest are baselines. Rule: nobody but the oracle sees more than the
demand until now.
"""

from __future__ import annotations

from math import ceil, inf

from serving.decisions.fleet import Load
from serving.decisions.simulate.oracle import Plan, first_mix
from serving.decisions.simulate.outcome import SLOT_S
from serving.decisions.simulate.setting import Policy, Setting
from serving.decisions.wake import Target, next_target


class Scaler:
    def __init__(self, policy: Policy, setting: Setting, slots: list[Load], plan: Plan) -> None:
        self._policy, self._setting, self._plan = policy, setting, plan
        self.first = self._first(slots)
        self._wanted = Target(*self.first)
        self._last_came = -inf

    def came(self, now: float) -> None:
        self._last_came = now

    def wanted(self, now: float, needed: Load, num_gpu: int, num_gpu_ready: int) -> tuple[int, int]:
        """CPU and GPU servers; `num_gpu` counts those on their way, too."""
        setting, scaler = self._setting, self._policy.scaler
        if scaler == "oracle":
            return self._foreseen(now)
        if scaler == "always":
            return 0, setting.gpu.min_replicas
        if scaler == "demand":
            return 0, self._by_demand(now, needed, num_gpu)
        cpu, gpu = setting.cpu.supply, setting.gpu.supply
        self._wanted = next_target(self._wanted, now, needed, cpu, gpu, num_gpu_ready, setting.wake)
        return self._wanted.cpu, self._wanted.gpu

    def _first(self, slots: list[Load]) -> tuple[int, int]:
        setting, policy = self._setting, self._policy
        if policy.scaler == "oracle":
            return self._foreseen(0.0)  # before time began it knew, too
        num_cpu = setting.cpu.first_replicas
        if num_cpu is None or not policy.has_cpu:
            num_cpu = first_mix(slots, setting).num_cpu if policy.has_cpu else 0
        return num_cpu, setting.gpu.min_replicas

    def _foreseen(self, now: float) -> tuple[int, int]:
        """Asked for a cold start and a handover ahead, and kept while needed again within that time."""
        setting = self._setting
        cpu_ahead_s = setting.cpu.cold_start.mean_s + SLOT_S
        gpu_ahead_s = setting.gpu.cold_start.mean_s + setting.bridge.settle_s + setting.bridge.ramp_s + SLOT_S
        return self._plan.most(now, cpu_ahead_s)[0], self._plan.most(now, gpu_ahead_s)[1]

    def _by_demand(self, now: float, needed: Load, num_gpu: int) -> int:
        """As many as the demand needs, at once; to none after the cool-down, and not to fewer before."""
        if now - self._last_came > self._setting.cooldown_s:
            return self._setting.gpu.min_replicas
        wanted = ceil(needed.gpu / self._setting.wake.max_load_ratio - 1e-9)
        return min(max(1, wanted, num_gpu), self._setting.gpu.max_replicas) if self._last_came > -inf else num_gpu
