"""Starts a supervised Triton on a folder of test models: `python serve.py SPEC.json`, a file that `harness.py` writes.

The same code as `tandem triton` runs, without a gated repository before it: the configurations come from the test.
"""

import asyncio
import json
import sys
from pathlib import Path

from serving.errors import TandemError, exit_code
from serving.local import emulated
from serving.local.environments import ENGINES, ensure
from serving.local.launch import BACKENDS, Launch, Ports, backend_directory
from serving.local.pool_plan import PoolPlan
from serving.local.triton import say, serve


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    environment = ensure(ENGINES["cpu"], say)
    is_emulated = any(config["backend"] == "emulated" for config in spec["configs"].values())
    backends = {**BACKENDS, "emulated": emulated.BACKEND} if is_emulated else BACKENDS
    launch = Launch(
        environment=environment,
        backends=backend_directory(environment, backends),
        model_repository=Path(spec["repository"]),
        pool=spec["pool"],
        host="127.0.0.1",
        ports=Ports(*spec["ports"]),
        exit_timeout_s=spec["exit_timeout_s"],
        openvino=Path(spec["openvino"]) if spec.get("openvino") else None,
        otel_endpoint=spec.get("otel_endpoint"),
    )
    configs = {name: json.dumps(config) for name, config in spec["configs"].items()}
    try:
        return asyncio.run(serve(launch, PoolPlan(spec["pool"], configs, lambda model: None)))
    except TandemError as error:
        say(str(error))
        return exit_code(error)


if __name__ == "__main__":
    sys.exit(main())
