"""Writes a repository of untrained nets, for timing on a machine that has onnx, ONNX Runtime and NumPy and no torch.

    python -m serving.export.speed_nets REPOSITORY [--net resnet50 ...] [--variant fp32 ...] [--max-batch-size 32]

No accuracy is gated, because there is nothing to be right about, and no speed, because whoever makes these is about to time them;
`tandem export speed:NET` does both with the same nets. Rule: every record made here says `untrained: speed only`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from serving.decisions.engines import PLAIN
from serving.errors import TandemError, UserError, exit_code
from serving.export import pool_gates, variant_files, variants
from serving.export.exported_model import ExportedModel, SourceOptions
from serving.export.gates import accuracy
from serving.export.progress import Progress, lines, silent
from serving.export.publish import next_version, publish_all, writing
from serving.export.speed_nets import NETS, load, net
from serving.export.speed_nets.graph import SEED, run
from serving.export.variant_files import ProvenVariant
from serving.repository import PASSED, UNTRAINED, PoolGate, Variant

VARIANTS = ("fp32", "fp16", "int8")  # BF16 has no file of its own
NUM_ROWS = 4  # that calibrate, and others that are compared: speed depends on neither


def proven(
    name: str, exported: ExportedModel, wanted: Sequence[str], progress: Progress = silent
) -> list[ProvenVariant]:
    """In the order wanted. Raises GateRefused for a variant that answers NaN or infinity, or whose rows depend on their batch."""
    chosen = net(name)
    inputs = {key: values[:NUM_ROWS] for key, values in exported.example.items()}
    reference = run(exported.model, inputs)
    calibration = chosen.examples(NUM_ROWS, SEED + 2, chosen.num_tokens)
    made = []
    for variant in wanted:
        full_name = f"{chosen.model}-{variant}"
        progress(f"making {full_name}", 0, 1)
        candidate = next(variants.candidates(variant, exported.model, calibration))
        made.append(
            ProvenVariant(
                variant=variant,
                model=candidate.model,
                how="" if variant == "fp32" else candidate.how,
                gate=accuracy.untrained(full_name, candidate.model, reference, inputs, exported.max_batch_size),
                pools=pools(variant),
                speed=(),
                needs=tuple(sorted(candidate.needs)),
            )
        )
        progress(f"making {full_name}", 1, 1)
    return made


def pools(variant: str) -> Mapping[str, PoolGate]:
    """Where its precision is computed at all."""
    return {
        pool: pool_gates.refusal(variant, pool) or PoolGate(PASSED, engine, UNTRAINED) for pool, engine in PLAIN.items()
    }


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m serving.export.speed_nets", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("repository", type=Path)
    parser.add_argument("--net", action="append", choices=NETS, help="default: all")
    parser.add_argument("--variant", action="append", choices=VARIANTS, help="default: all")
    parser.add_argument("--max-batch-size", type=int, help="default: each net's own")
    options = parser.parse_args(arguments)
    size = options.max_batch_size
    source_options = SourceOptions(max_batch_size=size)
    try:
        if size is not None and size < 1:
            raise UserError(f"the max batch size is {size}, want 1 or more")
        names = tuple(dict.fromkeys(options.net or NETS))
        with writing(options.repository, *(net(name).model for name in names)):
            for name in names:  # one after another: a BERT-base holds 2 GB in the making
                for variant in write(
                    name, load(name, source_options, lines), options.repository, options.variant or VARIANTS
                ):
                    print(f"{variant.directory}: {variant.size_bytes() / 1e6:.0f} MB, {UNTRAINED}")
    except TandemError as error:
        print(f"tandem: {error}", file=sys.stderr)
        return exit_code(error)
    return 0


def write(name: str, exported: ExportedModel, repository: Path, wanted: Sequence[str]) -> list[Variant]:
    """Call it inside `writing`."""
    model = net(name).model
    version = next_version(repository, model, exported.model)
    shared = variant_files.shared_files(exported, None)
    publications = [
        variant_files.publication(
            exported,
            made,
            shared,
            model=model,
            model_version=version,
            queue_delay_us=0,
            fp32_digest=sha256(exported.model).hexdigest(),
        )
        for made in proven(name, exported, wanted, lines)
    ]
    return publish_all(repository, publications)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
