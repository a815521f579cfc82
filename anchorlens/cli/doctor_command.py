"""``anchorlens doctor MODEL``: check that a model does what interventions need."""

import sys

import click

from anchorlens.cli.output import echo, echo_json, show_table
from anchorlens.cli.shared_options import BACKEND_HELP
from anchorlens.constants import BACKENDS
from anchorlens.progress import name_import

EPILOG = """\b
Examples:
  anchorlens doctor smollm2-135m-instruct
  anchorlens doctor path/to/checkpoint --dtype bfloat16 --device cuda
  anchorlens doctor openai-community/gpt2 --backend bridge
  anchorlens doctor path/to/checkpoint --json > doctor.json

Exit code 0: no check failed, warnings are allowed; 1: a check failed; 2: invalid input, or the
model cannot be loaded.
"""


@click.command(
    "doctor",
    epilog=EPILOG,
    short_help="Check that a model, its tokenizer and its hooks work as needed",
)
@click.argument("model", metavar="MODEL")
@click.option(
    "--device", default=None, help="cuda, cuda:1, mps or cpu; the best available if left out."
)
@click.option(
    "--dtype",
    default=None,
    help="float32, bfloat16, float16, float64 or auto (the checkpoint's); float32 if left out.",
)
@click.option("--backend", type=click.Choice(BACKENDS), default=None, help=BACKEND_HELP)
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Random seed of the test rows.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
@click.option("--quiet", "-q", is_flag=True, help="Hide progress bars.")
def doctor_command(
    model: str,
    device: str | None,
    dtype: str | None,
    backend: str | None,
    seed: int,
    as_json: bool,
    quiet: bool,
) -> None:
    """Check a model before it is measured: run it, change it, and compare with known results.

    MODEL is a name, a path or a name on the Hugging Face hub. The checks need no data and take
    about as long as 200 short forward passes. They compare log-probabilities with Hugging Face,
    count BOS, test padding and batches, write to every hook in every layer, test patches and
    knockouts whose results are known, and compare both engines. Each failed check names its cure;
    docs/doctor.md explains the checks.
    """
    with name_import(show=not quiet):
        from anchorlens.diagnosis.doctor import doctor

    found = doctor(
        model, device=device, dtype=dtype, backend=backend, seed=seed, show_progress=not quiet
    )
    if as_json:
        echo_json(found.to_json())
    else:
        show_table(
            found.title,
            ("check", "status", "value", "limit", ""),
            [check.texts() for check in found.checks],
        )
        for check in found.checks:
            if check.cure:
                echo(f"{check.name}: {check.cure}")
    sys.exit(0 if found.ok else 1)
