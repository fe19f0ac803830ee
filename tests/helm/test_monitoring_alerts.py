"""Which alerts fire on which series? The rendered rules, run by Prometheus' own promtool over hours of made-up readings, one a minute.

Each case begins with an installation that is well and changes some of it from the start on; `at` is when it is looked at.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from .conftest import Object, Render
from .prometheus import NotThere, program
from .test_monitoring import BOTH, KEYS, MONITORED, SHAPES

pytestmark = pytest.mark.cluster  # needs a program that is fetched, as `make test-cluster` does

OURS = 'namespace="serving",tandem="tandem"'
GATEWAY, TRITON, SCALER = (f'{OURS},job="tandem-{name}"' for name in ("gateway", "triton", "scaler"))
RULES: dict[str, Object] = {
    "stays": {**MONITORED, "auth": KEYS, "pools": BOTH},
    "sleeps": SHAPES["a GPU pool that sleeps"],
    "follows": SHAPES["a GPU pool that follows the scaler"],
    "is scaled": SHAPES["a GPU pool that the scaler scales"],
}
STATES = ("cold", "waking", "warming", "ready", "draining", "down")


def requests(outcome: str, values: str) -> dict[str, str]:
    return {
        f'tandem_requests_total{{{GATEWAY},pod="g1",model="m",variant="fp32",pool="cpu",outcome="{outcome}"}}': values
    }


def state(pool: str, is_in: str, pod: str = "g1") -> dict[str, str]:
    return {
        f'tandem_pool_state{{{GATEWAY},pod="{pod}",pool="{pool}",state="{one}"}}': "1x600" if one == is_in else "0x600"
        for one in STATES
    }


def gauge(name: str, pool: str, values: str, pod: str = "g1") -> dict[str, str]:
    return {f'{name}{{{GATEWAY},pod="{pod}",pool="{pool}"}}': values}


def scaler(name: str, values: str, pod: str = "s1", more: str = "") -> dict[str, str]:
    return {f'tandem_{name}{{{SCALER},pod="{pod}"{more}}}': values}


def wanted(pool: str, values: str) -> dict[str, str]:
    return scaler("wanted_replicas", values, more=f',pool="{pool}"')


def up(job: str, pod: str, values: str, more: str = "") -> dict[str, str]:
    return {f'up{{{job},pod="{pod}"{more}}}': values}


def failures(reason: str, values: str) -> dict[str, str]:
    return {
        f'nv_inference_request_failure{{{TRITON},pod="t1",pool="cpu",model="m",version="1",reason="{reason}"}}': values
    }


BUFFER = f'tandem_buffer_refusals_total{{{GATEWAY},pod="g1"}}'
CONNECTION = f'tandem_connection_refusals_total{{{GATEWAY},pod="g1",listener="clients",limit="client"}}'
WELL: dict[str, str] = {
    **requests("ok", "0+600x600"),
    **{key: value for one in ("shed", "expired", "backend_error", "client_error", "cancelled", "rate_limited") for key, value in requests(one, "0x600").items()},
    **state("cpu", "ready"),
    **state("gpu", "ready"),
    **gauge("tandem_queued", "cpu", "0x600"),
    **gauge("tandem_in_flight", "cpu", "1x600"),
    **gauge("tandem_demand_replicas", "gpu", "0x600"),
    **gauge("tandem_contained_restarts_total", "cpu", "0x600"),
    f'tandem_keys_readable{{{GATEWAY},pod="g1"}}': "1x600",
    **dict.fromkeys((BUFFER, CONNECTION), "0x600"),
    **up(GATEWAY, "g1", "1x600"),
    **up(TRITON, "t1", "1x600", ',pool="cpu"'),
    **up(SCALER, "s1", "1x600"),
    **wanted("gpu", "1x600"),
    **scaler("scaler_holds", "0x600"),
    **scaler("scaler_keeps", "0x600"),
    **scaler("scaler_gateway_heard_seconds", "0.5x600", more=',gateway="10.0.0.1:9090"'),
    **{key: value for one in ("BACKEND", "REJECTED", "CANCELED", "OTHER") for key, value in failures(one, "0x600").items()},
}  # fmt: skip
LEADS = {**scaler("scaler_leads", "1x600"), **scaler("scaler_cannot_apply", "0x600")}
CONTROL_CURRENT = f'tandem_control_current{{{GATEWAY},pod="g2"}}'
CONTROL = [
    f'tandem_control_revision{{{GATEWAY},pod="{pod}",digest="{digest}"}}' for pod, digest in (("g1", "a"), ("g2", "b"))
]
DOLLARS = f'tandem_tenant_quota_ratio{{{GATEWAY},pod="g1",tenant="ads",what="dollars",per="month"}}'
TIME_RATIO = f'tandem_time_ratio{{{GATEWAY},pod="g1",pool="cpu"}}'
TRACES_LOST, TRACES_SENT = (f'tandem_traces_total{{{GATEWAY},pod="g1",outcome="{it}"}}' for it in ("lost", "sent"))
USAGE_CURRENT = f'tandem_usage_current{{{GATEWAY},pod="g1"}}'


def tenant(name: str, answered: int, shed: int, device_s: float) -> dict[str, str]:
    """A minute."""
    of = f'{GATEWAY},pod="g1",tenant="{name}"'
    return {
        f'tandem_tenant_requests_total{{{of},model="m",pool="cpu"}}': f"0+{answered}x600",
        f'tandem_tenant_device_seconds_total{{{of},model="m",pool="cpu"}}': f"0+{device_s}x600",
        f'tandem_tenant_refusals_total{{{of},outcome="shed"}}': f"0+{shed}x600",
    }


KEYS_READABLE = f'tandem_keys_readable{{{GATEWAY},pod="g2"}}'
CONFLICT = f'tandem_digest_conflict{{{GATEWAY},pod="g1",pool="cpu",model="m",variant="fp32"}}'
QUARANTINED = CONFLICT.replace("tandem_digest_conflict", "tandem_quarantined_servers")
SLOW_BURN = {**requests("ok", "0+1000x600"), **requests("expired", "0+8x600")}  # 0.8 % where 0.5 % is allowed

# Rules, what is not well, minutes until it is looked at, and which alerts fire then, how many of each.
CASES: dict[str, tuple[str, dict[str, str], int, dict[str, int]]] = {
    "an installation that is well": ("stays", {}, 300, {}),
    "what clients got wrong, took back or sent beyond their quota": (
        "stays",
        {**requests("client_error", "0+600x600"), **requests("cancelled", "0+600x600"), **requests("rate_limited", "0+600x600")},
        300,
        {},
    ),
    "nobody asks": ("stays", requests("ok", "0x600"), 300, {}),
    "a tenth is shed, just begun": ("stays", requests("shed", "0+66x600"), 1, {}),
    "a tenth is shed, after ten minutes": ("stays", requests("shed", "0+66x600"), 10, {"TandemObjectiveBurns": 1}),
    "a tenth is shed, after half an hour": ("stays", requests("shed", "0+66x600"), 30, {"TandemObjectiveBurns": 2, "TandemSheds": 1}),
    "a tenth was shed for a minute, and it is over": ("stays", requests("shed", "0x9 66x591"), 30, {}),
    "a little too many expire for hours": ("stays", SLOW_BURN, 100, {"TandemObjectiveBurns": 1}),
    "bodies that find no memory": ("stays", {BUFFER: "0+60x600"}, 20, {"TandemMeetsLimits": 1}),
    "connections that are too many": ("stays", {CONNECTION: "0+60x600"}, 20, {"TandemMeetsLimits": 1}),
    "a few connections that were too many": ("stays", {CONNECTION: "0+60x3 180x597"}, 60, {}),
    "a Triton that is stuck again and again": ("stays", gauge("tandem_contained_restarts_total", "cpu", "0x5 1x4 2x4 3x586"), 20, {"TandemTritonStuck": 1}),
    "a Triton that was stuck once": ("stays", gauge("tandem_contained_restarts_total", "cpu", "0x5 1x594"), 20, {}),
    "three in a hundred expire": ("stays", requests("expired", "0+18x600"), 20, {"TandemExpires": 1}),
    "the backend fails one in fifty": ("stays", requests("backend_error", "0+12x600"), 100, {"TandemObjectiveBurns": 1}),
    "a GPU that is cold for a while": ("stays", state("gpu", "waking"), 15, {}),
    "a GPU that is cold for too long": ("stays", state("gpu", "waking"), 25, {"TandemGpuCold": 1}),
    "a GPU that one of two gateways has": ("stays", {**state("gpu", "waking"), **state("gpu", "ready", "g2")}, 60, {}),
    "a GPU that sleeps because nobody wants it": ("sleeps", state("gpu", "cold"), 60, {}),
    "a GPU that sleeps and is wanted": (
        "sleeps",
        {**state("gpu", "waking"), **gauge("tandem_demand_replicas", "gpu", "0.3x600"), **gauge("tandem_demand_replicas", "gpu", "0.3x600", "g2")},
        25,
        {"TandemGpuCold": 1},
    ),
    "a bridge that bears it": ("sleeps", {**state("gpu", "cold"), **gauge("tandem_queued", "cpu", "1x600"), **gauge("tandem_in_flight", "cpu", "2x600")}, 60, {}),
    "a bridge on which more waits than is worked on": (
        "sleeps",
        {**state("gpu", "cold"), **gauge("tandem_queued", "cpu", "9x600"), **gauge("tandem_in_flight", "cpu", "2x600")},
        12,
        {"TandemBridgeSaturated": 1},
    ),
    "a bridge that sheds": ("sleeps", {**state("gpu", "cold"), **requests("shed", "0+1x600")}, 12, {"TandemBridgeSaturated": 1}),
    "the same with a GPU that is ready": (
        "sleeps",
        {**gauge("tandem_queued", "cpu", "9x600"), **requests("shed", "0+1x600")},
        12,
        {},
    ),
    "a pool on which nobody answers": ("stays", state("cpu", "down"), 6, {"TandemPoolDown": 1}),
    "a pool that one gateway alone does not reach": ("stays", {**state("cpu", "down"), **state("cpu", "ready", "g2")}, 60, {}),
    "a roll-out of another model file": ("stays", {CONFLICT: "1x8 0x592"}, 20, {}),
    "a pool whose servers differ": ("stays", {CONFLICT: "1x600"}, 16, {"TandemDigestConflict": 1}),
    "a variant whose answers are off": ("stays", {QUARANTINED: "0x5 1x595"}, 6, {"TandemQuarantined": 1}),
    "a Triton that starts slowly": ("stays", up(TRITON, "t2", "0x13 1x600", ',pool="cpu"'), 14, {}),
    "a Triton that stays away": ("stays", up(TRITON, "t2", "0x600", ',pool="cpu"'), 16, {"TandemTritonUnreachable": 1}),
    "a Triton that fails": ("stays", failures("BACKEND", "0+1x600"), 20, {"TandemTritonFails": 1}),
    "clients who leave": ("stays", failures("CANCELED", "0+5x600"), 60, {}),
    "one gateway of two away": ("stays", up(GATEWAY, "g2", "0x600"), 11, {"TandemGatewayUnreachable": 1}),
    "all gateways away": ("stays", up(GATEWAY, "g1", "0x600"), 11, {"TandemGatewayUnreachable": 1, "TandemGatewayDown": 1}),
    "a GPU that sleeps because it would not pay": ("follows", {**state("gpu", "cold"), **wanted("gpu", "0x600"), **gauge("tandem_demand_replicas", "gpu", "0.9x600")}, 60, {}),
    "a GPU that the scaler wants": ("follows", {**state("gpu", "waking"), **gauge("tandem_demand_replicas", "gpu", "0.1x600")}, 25, {"TandemGpuCold": 1}),
    "a scaler that is well": ("follows", {}, 300, {}),
    "a scaler that starts anew": ("follows", {**up(SCALER, "s1", "1x9 0x591"), **up(SCALER, "s2", "0x12 1x588"), **scaler("scaler_holds", "0x9 1x3 0x588")}, 13, {}),
    "a scaler that stays away": ("follows", up(SCALER, "s1", "0x600"), 6, {"TandemScalerDown": 1}),
    "a scaler that hears nobody": ("follows", scaler("scaler_holds", "1x600"), 11, {"TandemScalerHolds": 1}),
    "a scaler that lets nothing go down for a while": ("follows", scaler("scaler_keeps", "1x8 0x592"), 11, {}),
    "a gateway that the scaler alone does not hear": (
        "follows",
        scaler("scaler_gateway_heard_seconds", "0+60x600", more=',gateway="10.0.0.2:9090"'),
        20,
        {"TandemScalerHolds": 1},
    ),
    "two scalers of which one leads": ("is scaled", {**LEADS, **scaler("scaler_leads", "0x600", "s2"), **scaler("scaler_cannot_apply", "1x600", "s2")}, 60, {}),
    "two scalers of which none leads": ("is scaled", {**scaler("scaler_leads", "0x600"), **scaler("scaler_leads", "0x600", "s2")}, 6, {"TandemScalerCannotScale": 1}),
    "a scaler that is refused": ("is scaled", {**LEADS, **scaler("scaler_cannot_apply", "1x600")}, 6, {"TandemScalerCannotScale": 1}),
    "no scaler where none is asked for": ("sleeps", up(SCALER, "s1", "0x600"), 60, {}),
    "a gateway that does not follow the control document": ("stays", {CONTROL_CURRENT: "0x600"}, 6, {"TandemControlStale": 1}),
    "gateways with different revisions": ("stays", {CONTROL[0]: "7x600", CONTROL[1]: "8x600"}, 6, {"TandemControlStale": 1}),
    "a tenant whose month is nearly used up": ("stays", {DOLLARS: "0.95x600"}, 6, {"TandemQuotaNear": 1}),
    "a tenant that spends as it may": ("stays", {DOLLARS: "0+0.00002x600"}, 300, {}),  # 31 days of it are 0.9
    "a tenant that spends three times that": ("stays", {DOLLARS: "0+0.00006x600"}, 70, {"TandemBudgetBurns": 1}),
    "a tenant that floods is refused": ("stays", {**tenant("ads", 600, 1200, 50.0), **tenant("mail", 60, 0, 5.0)}, 60, {}),
    "a tenant that sends little is refused": ("stays", {**tenant("ads", 600, 1200, 50.0), **tenant("mail", 60, 30, 5.0)}, 30, {"TandemTenantStarved": 1}),
    "a pool that takes twice as long as its curve": ("stays", {TIME_RATIO: "2x600"}, 32, {"TandemMispredicts": 1}),
    "a pool as its curve": ("stays", {TIME_RATIO: "1.2x600"}, 60, {}),
    "a place of counts that is away": ("stays", {USAGE_CURRENT: "0x600"}, 6, {"TandemUsageStale": 1}),
    "traces that a collector does not take": ("stays", {TRACES_LOST: "0+6x600", TRACES_SENT: "0+60x600"}, 22, {"TandemTracesLost": 1}),
    "traces that were lost while a collector started anew": ("stays", {TRACES_LOST: "0+60x3 180x597", TRACES_SENT: "0x3 0+600x597"}, 60, {}),
    "no trace at all": ("stays", {TRACES_LOST: "0x600", TRACES_SENT: "0x600"}, 60, {}),
    "models that are not taken": ("stays", {f'tandem_model_source_refused{{{GATEWAY},pod="g2"}}': "1x600"}, 11, {"TandemModelSource": 1}),
    "a bucket that cannot be read": ("stays", {f'tandem_model_source_current{{{GATEWAY},pod="g2"}}': "0x600"}, 11, {"TandemModelSource": 1}),
    "keys that one gateway cannot read": ("stays", {KEYS_READABLE: "0x600"}, 6, {"TandemKeysUnreadable": 1}),
}  # fmt: skip


@pytest.fixture(scope="module")
def tool() -> Path:
    try:
        return program("promtool")
    except NotThere as error:
        pytest.fail(str(error), pytrace=False)


def asked(
    tool: Path,
    folder: Path,
    values: Object,
    series: dict[str, str],
    minutes: int,
    queries: list[Object],
    render: Render,
) -> str:
    """What promtool says; nothing where all is as it should be."""
    (made,) = render(values).all("PrometheusRule")
    (folder / "rules.yaml").write_text(yaml.safe_dump(made["spec"]))
    readings = [{"series": name, "values": numbers} for name, numbers in {**WELL, **series}.items()]
    case = {
        "interval": "1m",
        "input_series": readings,
        "promql_expr_test": [{**query, "eval_time": f"{minutes}m"} for query in queries],
    }
    (folder / "tests.yaml").write_text(
        json.dumps({"rule_files": ["rules.yaml"], "evaluation_interval": "1m", "tests": [case]})
    )
    done = subprocess.run([tool, "test", "rules", "tests.yaml"], cwd=folder, capture_output=True, text=True, timeout=60)
    return "" if done.returncode == 0 else done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES)
def test_what_fires(case: str, tool: Path, tmp_path: Path, render: Render) -> None:
    shape, series, minutes, firing = CASES[case]
    samples = [{"labels": f'{{alertname="{name}"}}', "value": number} for name, number in firing.items()]
    query = {"expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "exp_samples": samples}
    assert asked(tool, tmp_path, RULES[shape], series, minutes, [query], render) == ""


def test_every_alert_fires_in_some_case() -> None:
    fired = {name for _, _, _, firing in CASES.values() for name in firing}
    template = Path(__file__).parents[2] / "helm" / "tandem" / "templates" / "monitoring" / "_alerts.tpl"
    assert fired == set(re.findall(r"^- alert: (\w+)$", template.read_text(encoding="utf-8"), re.MULTILINE))


def test_what_is_recorded_adds_up(tool: Path, tmp_path: Path, render: Render) -> None:
    labels = '{__name__="%s",namespace="serving",pool="%s",tandem="tandem"}'
    series = {
        **gauge("tandem_demand_replicas", "gpu", "0.3x600"),
        **gauge("tandem_demand_replicas", "gpu", "0.4x600", "g2"),
        **gauge("tandem_ready_servers", "gpu", "2x600"),
        **gauge("tandem_ready_servers", "gpu", "1x600", "g2"),
        **up(TRITON, "t2", "1x600", ',pool="gpu"'),
        **up(TRITON, "t3", "0x600", ',pool="gpu"'),
    }
    wanted = {
        "tandem_pool:demand_replicas:sum": 0.7,
        "tandem_pool:ready_servers:max": 2,
        "tandem_pool:replicas:count": 2,
        "tandem_pool:price_per_hour": 1.2,
    }
    queries = [
        {"expr": f'{name}{{pool="gpu"}}', "exp_samples": [{"labels": labels % (name, "gpu"), "value": value}]}
        for name, value in wanted.items()
    ]
    assert asked(tool, tmp_path, RULES["stays"], series, 10, queries, render) == ""


def test_promtool_does_notice_an_alert_that_was_not_expected(tool: Path, tmp_path: Path, render: Render) -> None:
    query = {"expr": 'ALERTS{alertstate="firing"}', "exp_samples": []}
    assert "TandemPoolDown" in asked(tool, tmp_path, RULES["stays"], state("cpu", "down"), 60, [query], render)
