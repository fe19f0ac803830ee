"""What `--help` shows beside a verb's sentences: examples that can be copied, and its options in groups where they are many.

A verb is looked up by how it is called, as `tandem keys add`. Rule: tests try every example's words and count every option's group.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import click

EXAMPLES: Mapping[str, Sequence[str]] = {
    "tandem apply": (
        "tandem apply new.yaml --control control.yaml",
        "tandem apply new.yaml --control redis://redis:6379 --why 'version 3 to 5 %'",
    ),
    "tandem cost": (
        "tandem cost --config tandem.yaml --by tenant,model --since 30d",
        "tandem cost --config tandem.yaml --since 2026-11-01 --csv",
    ),
    "tandem diff": ("tandem diff new.yaml --control redis://redis:6379",),
    "tandem history": ("tandem history --control control.yaml",),
    "tandem undo": ("tandem undo --control control.yaml", "tandem undo 7 --control redis://redis:6379"),
    "tandem": ("tandem up", "tandem run sklearn:wine.joblib --data held-out.npz --trust", "tandem doctor"),
    "tandem campaign": ("tandem campaign run loadtest/campaigns/digits.yaml",),
    "tandem campaign report": ("tandem campaign report results/digits-20261125-1200",),
    "tandem campaign run": (
        "tandem campaign run loadtest/campaigns/digits.yaml --duration 10 --repeats 3",
        "tandem campaign run loadtest/campaigns/digits.yaml --fail-if 'p99_s > 0.05'",
        "tandem campaign run digits-open.yaml --from-log access.jsonl",
        "tandem campaign run loadtest/campaigns/claims.yaml --only int8-suits-cpus --quick",
    ),
    "tandem cluster": ("tandem cluster preflight -n tandem", "tandem cluster status -n tandem"),
    "tandem cluster campaign": (
        "tandem cluster campaign loadtest/campaigns/digits.yaml -n tandem",
        "tandem cluster campaign --attach -n tandem",
    ),
    "tandem cluster keys": ("tandem cluster keys --secret tandem-keys -n tandem",),
    "tandem cluster preflight": (
        "tandem cluster preflight -n tandem --gpu",
        "helm template tandem helm/tandem | tandem cluster preflight -n tandem --rendered -",
    ),
    "tandem cluster scaler": (
        "tandem cluster scaler --config tandem.yaml --gateways http://tandem-gateway:9090 --apply gpu",
    ),
    "tandem cluster status": ("tandem cluster status -n tandem", "tandem cluster status -n tandem --json"),
    "tandem compare": ("tandem compare results/before results/after",),
    "tandem completion": (
        "tandem completion bash > ~/.local/share/bash-completion/completions/tandem",
        "tandem completion zsh > ~/.zfunc/_tandem",
        "tandem completion fish > ~/.config/fish/completions/tandem.fish",
    ),
    "tandem doctor": ("tandem doctor", "tandem doctor --port 9000 --json"),
    "tandem environment": ("tandem environment openvino",),
    "tandem explain": ("tandem explain 5f2c", "tandem explain 5f2c --url http://127.0.0.1:8080 --json"),
    "tandem export": (
        "tandem export model.onnx --data held-out.npz",
        "tandem export hf:./my-encoder --data texts.csv --yes",
        "tandem export sklearn:wine.joblib --data held-out.npz --trust",
        "tandem export module:package.module:make --data images/ --trust --yes",
    ),
    "tandem gateway": ("tandem gateway --config tandem.yaml --port 8080 --admin-port 9090",),
    "tandem keys": ("tandem keys add --keys keys.json --name ann --scope infer",),
    "tandem keys add": (
        "tandem keys add --keys keys.json --name ann --scope infer --expires 90d",
        "tandem keys add --keys keys.json --name prometheus --scope metrics",
    ),
    "tandem keys list": ("tandem keys list --keys keys.json",),
    "tandem keys revoke": ("tandem keys revoke --keys keys.json 4f1d2c3b",),
    "tandem logs": ("tandem logs gateway --tail 20", "tandem logs --follow"),
    "tandem models": ("tandem models", "tandem models show digits", "tandem models rm digits-int8"),
    "tandem models history": ("tandem models history digits",),
    "tandem models mirror": (
        "tandem models mirror s3://bucket/models /srv/models",
        "tandem models mirror oci://registry.example.com/team/models:1 /srv/models --once",
    ),
    "tandem models pin": ("tandem models pin digits --version 2 --control control.yaml",),
    "tandem models rollback": ("tandem models rollback digits --control redis://redis:6379",),
    "tandem models rollout": ("tandem models rollout digits --url http://127.0.0.1:8080 --output report.html",),
    "tandem models rm": ("tandem models rm digits-int8", "tandem models rm wine digits --served"),
    "tandem models show": ("tandem models show digits", "tandem models show digits-int8 --json"),
    "tandem plan": (
        "tandem plan --profile results/profile-digits-20261125.json --rate 200 --p99 20ms",
        "tandem plan --profile cpu.json --profile gpu.json --rates day.csv --p99 20ms --output planned",
    ),
    "tandem profile": ("tandem profile digits --quick", "tandem profile digits --p99 20ms,50ms --variant int8"),
    "tandem run": (
        "tandem run model.onnx --data held-out.npz",
        "tandem run sklearn:wine.joblib --data held-out.npz --trust",
    ),
    "tandem simulate": (
        "tandem simulate docs/scenarios/bert-large.yaml",
        "tandem simulate docs/scenarios/bert-large.yaml --arrivals bursts --rate 50 --policy tandem --policy hold",
    ),
    "tandem status": ("tandem status", "tandem status --port 8080 --json"),
    "tandem stop": ("tandem stop", "tandem stop --port 8080"),
    "tandem triton": ("tandem triton --pool cpu --model-repository model_repo --http-port 8000",),
    "tandem up": (
        "tandem up",
        "tandem up --detach --port 9000",
        "tandem up --config tandem.yaml --keys keys.json --host 0.0.0.0",
        "tandem up --pool cpu --pool gpu=http://gpu-machine:8000",
    ),
    "tandem verdict": (
        "tandem verdict digits --rate 200 --p99 20ms",
        "tandem verdict digits --rates day.csv --p99 20ms --profile gpu.json",
    ),
    "tandem verify": ("tandem verify", "tandem verify --model digits --digests-only"),
}

# Of verbs: headline -> the names of the options below it, in this order. What stands in none is told under "Options".
GROUPS: Mapping[str, Mapping[str, Sequence[str]]] = {
    "tandem": {
        "Bring a model": ("run", "export", "models", "verify"),
        "Serve it": ("up", "status", "logs", "stop", "explain", "doctor", "environment", "gateway", "triton", "keys"),
        "Change what answers": ("apply", "diff", "history", "undo"),
        "Decide": ("verdict", "profile", "plan", "simulate", "cost"),
        "Load-test": ("campaign", "compare"),
        "On Kubernetes": ("cluster",),
    },
    "tandem export": {
        "What it is called and where it goes": ("model", "model_repository", "num_kept", "payload"),
        "What judges it": (
            *("data", "calibration", "task", "metric", "labels", "preprocessing", "max_bad_ratio"),
            *("keeps_data", "accepts_ungated", "accepts_worse"),
        ),
        "Limits of its variants": (
            *("max_drop", "min_agreement", "min_cosine_mean", "min_cosine_worst", "min_recall_at_10"),
            *("max_noise_ratio", "max_absolute_error", "max_relative_error"),
            *("max_probability_difference", "max_row_difference"),
        ),
        "How the source is read": (
            *("is_trusted", "is_yes", "example", "dims", "layout", "image_size", "max_length"),
            *("pooling", "is_normalised", "opset"),
        ),
        "Which variants are made": (
            *("precisions", "variant", "keeps_slow", "int8_range", "budget_s", "fuses", "is_for_tensorrt"),
            *("engine_names", "seconds"),
        ),
        "How it is served": ("max_batch_size", "queue_delay_us"),
    },
    "tandem up": {
        "What is served": ("model_repository", "control", "tried", "allow_missing", "may_measure"),
        "By which pools": ("pools", "config", "emulate"),
        "Where": ("host", "port", "grpc_port", "gateways", "is_detached"),
        "To whom": ("keys", "insecure_no_auth", "allowed_hosts", "triton_words"),
    },
    "tandem gateway": {
        "What it serves": ("config", "model_repository", "control"),
        "Where": ("host", "port", "shared_port", "grpc_port", "admin_host", "admin_port", "ready_file"),
        "To whom": ("keys", "insecure_no_auth", "allowed_hosts"),
    },
    "tandem triton": {
        "What is served": ("model_repository", "pool", "engine", "versions", "emulate", "may_measure"),
        "Where": (
            *("host", "http_port", "grpc_port", "metrics_port", "otel_endpoint"),
            *("ready_file", "exit_timeout_s", "max_memory_mb"),
        ),
        "How it computes": (
            *("instances", "threads", "queue_delay_us", "max_batch", "batch_buckets", "bucket_lengths", "cuda_option"),
        ),
    },
    "tandem campaign run": {
        "What is measured": (
            "url",
            "duration_s",
            "warmup_s",
            "repeats",
            "replayed",
            "model_repository",
            "only",
            "is_quick",
            "is_yes",
        ),
        "What comes of it": ("output", "fail_if", "form", "as_json"),
    },
    "tandem verdict": {
        "What is asked of it": ("rate_rps", "rates", "p99", "batch_size", "data", "model_repository"),
        "What may be rented": (
            *("prices", "instances", "like", "min_replicas", "max_replicas", "max_price_per_hour", "headroom_ratio"),
        ),
        "What is measured": ("profiles", "is_quick", "may_measure", "has_check", "is_yes"),
        "What comes of it": ("output", "fail_if", "form", "as_json"),
    },
    "tandem plan": {
        "What is asked of it": ("rate_rps", "rates", "p99", "batch_size", "model", "profiles"),
        "What may be rented": (
            *("prices", "instances", "like", "min_replicas", "max_replicas", "max_price_per_hour", "headroom_ratio"),
            *("gateway_per_hour", "minimise"),
        ),
        "What comes of it": ("output", "form", "as_json"),
    },
    "tandem profile": {
        "What is measured": (
            *("model_repository", "variants", "engines", "settings", "pool", "emulate", "is_quick"),
            *("has_search", "has_cold_start", "seconds", "is_yes"),
        ),
        "What is sent": ("p99", "batch_sizes", "rate_batch_sizes", "data", "encoding"),
        "What comes of it": ("output", "form", "as_json"),
    },
    "tandem simulate": {
        "What arrives": (
            *("trace", "copies", "jitter_s", "arrivals", "rate_rps", "duration_s", "burst_times", "burst_every_s"),
            *("burst_lasting_s", "swing", "seed"),
        ),
        "What is simulated": ("policies", "flow", "recommend", "objective_s", "noise_ratio", "per_second"),
        "What comes of it": ("report", "picture", "form", "as_json"),
    },
}


class Verb(click.Command):
    """A command with examples, and with its options in groups."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = GROUPS.get(ctx.command_path, {})
        told = {it.name: it.get_help_record(ctx) for it in self.get_params(ctx)}
        for head, names in groups.items():
            _write(formatter, head, [record for name in names if (record := told.pop(name, None))])
        _write(formatter, "Options", [record for record in told.values() if record])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(ctx, formatter)


class Verbs(click.Group):
    """A group of them."""

    command_class = Verb
    group_class = type

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        limit = formatter.width - 6 - max(map(len, self.commands))
        told = {name: (name, verb.get_short_help_str(limit)) for name, verb in sorted(self.commands.items())}
        for head, names in GROUPS.get(ctx.command_path, {}).items():
            _write(formatter, head, [told.pop(name) for name in names if name in told])
        _write(formatter, "Commands", list(told.values()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(ctx, formatter)


def _write(formatter: click.HelpFormatter, head: str, rows: Sequence[tuple[str, str]]) -> None:
    if rows:
        with formatter.section(head):
            formatter.write_dl(rows)


def write_examples(ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """As they are typed: nothing is wrapped, so that they can be copied."""
    if examples := EXAMPLES.get(ctx.command_path):
        formatter.write_paragraph()
        formatter.write("Examples:\n" if len(examples) > 1 else "Example:\n")
        for line in examples:
            formatter.write(f"  {line}\n")
