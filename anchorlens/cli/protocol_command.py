"""One command for each protocol, made of its specification: its own options and no other's."""

from collections.abc import Mapping
from typing import Any

import click

from anchorlens.cli.given import data_files, read_config
from anchorlens.cli.measure import measure, plan_only
from anchorlens.cli.sharing import SHARING, sharing_params
from anchorlens.cli.wording import flag_of
from anchorlens.errors import InputError
from anchorlens.protocols.arguments import Argument, Switch
from anchorlens.protocols.registry import PROTOCOLS, specification_of
from anchorlens.protocols.specification import Specification

_NOT_SPEC = (
    "config", "model", "dataset", "data_file", "columns", "spans", "limit", "device", "n_devices", "dtype", "stream", "out",
    "overwrite", "as_json", "quiet", "dry_run", "resume", "force_new", *SHARING,
)  # fmt: skip


def flags_of(spec: type[Specification]) -> dict[str, str]:
    """Argument -> flag."""
    return {name: flag_of(name, one.flag) for name, one in spec.arguments().items() if one.shell}


def protocol_command(name: str) -> click.Command:
    """The command ``anchorlens NAME``."""
    spec = specification_of(name)
    first = (spec.__doc__ or PROTOCOLS[name]).strip()
    paragraphs = [" ".join(part.split()) for part in first.split("\n\n")]
    return _ProtocolCommand(
        name,
        params=[*_common_params(), *_spec_params(spec), *_output_params()],
        callback=lambda **given: measure_protocol(spec, given),
        help="\n\n".join(paragraphs),
        short_help=PROTOCOLS[name],
        epilog=_examples(name),
    )


class _ProtocolCommand(click.Command):
    """Says whose option it is where another protocol's was given."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as why:
            owners = [
                name
                for name in PROTOCOLS
                if name != self.name and why.option_name in flags_of(specification_of(name)).values()
            ]
            if not owners:
                raise
            whose = " and ".join(f"`anchorlens {name}`" for name in owners)
            raise click.UsageError(f"{why.option_name} belongs to {whose}; this is `anchorlens {self.name}`.", ctx) from None


def _spec_params(spec: type[Specification]) -> list[click.Parameter]:
    flags = flags_of(spec)
    return [
        _option(name, flags[name], one, spec.model_fields[name].get_default())
        for name, one in spec.arguments().items()
        if one.shell
    ]


def _option(name: str, flag: str, one: Argument, default: Any) -> click.Option:
    """Without a default of its own: what is not given is left to the specification."""
    if isinstance(one.kind, Switch):
        off = one.kind.off or "--no-" + flag.lstrip("-")
        said = (flag if default else off).lstrip("-")
        return click.Option([f"{flag}/{off}", name], default=None, help=f"{one.help}  [default: {said}]")
    shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
    help_text = one.help if shown is None else f"{one.help}  [default: {shown}]"
    return click.Option([flag, name], default=None, metavar=one.kind.metavar, help=help_text)


def _common_params() -> list[click.Parameter]:
    return [
        click.Option(
            ["--config"], callback=read_config, is_eager=True, expose_value=False, metavar="FILE",
            help="TOML file with any of the options below (model = [...], limit = 64, ...); flags win.",
        ),
        click.Option(
            ["--model", "-m"], multiple=True, metavar="NAME",
            help="Hub name, directory, .gguf file or packaged model. May be given several times.",
        ),
        click.Option(
            ["--dataset", "-d"], multiple=True, metavar="NAME",
            help="popqa, triviaqa, hotpotqa, nq, their -sample sets, a file, or a name for your own. Several times for several.",
        ),
        click.Option(
            ["--data-file"], multiple=True, metavar="[NAME=]FILE",
            help="Local jsonl, json, csv, tsv or parquet file for a data set, in the order of --dataset or by NAME=.",
        ),
        click.Option(["--columns"], default=None, metavar="OURS=THEIRS", help="Columns of your own files: question=q,answers=gold."),
        click.Option(["--spans"], default="auto", show_default=True, metavar="HOW", help="auto, rules, annotation or spacy:NAME."),
        click.Option(
            ["--limit"], type=int, default=None, help="Questions drawn from each data set (seeded); donors come from the whole file."
        ),
    ]  # fmt: skip


def _output_params() -> list[click.Parameter]:
    return [
        click.Option(["--device"], default=None, help="cuda, mps or cpu; the best one if left out."),
        click.Option(
            ["--n-devices"], type=int, default=1, metavar="N", help="Spread the model over N CUDA devices, from --device on."
        ),
        click.Option(["--dtype"], default=None, help="float32, bfloat16 or float16."),
        click.Option(
            ["--stream"], is_flag=True, help="Read the weights layer by layer from their files: for models larger than memory."
        ),
        click.Option(
            ["--dry-run"], is_flag=True,
            help="Only print what would be measured: cells, batches, FLOPs, seconds, memory. Needs no --out; answers that a sweep "
            "starts from are still generated.",
        ),
        click.Option(["--out", "-o"], default=None, metavar="DIR", help="Run directory to write.  [required]"),
        click.Option(["--overwrite"], is_flag=True, help="Replace a run that is there."),
        click.Option(["--resume"], is_flag=True, help="Continue a run that was stopped; what was measured is not measured again."),
        click.Option(["--force-new"], is_flag=True, help="Throw away what a run that was stopped had measured, and begin again."),
        *sharing_params(),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object for scripts."),
        click.Option(["--quiet", "-q"], is_flag=True, help="No progress bars."),
    ]  # fmt: skip


def measure_protocol(spec: type[Specification], given: Mapping[str, Any]) -> None:
    """Measure what the options of a command say."""
    for key, flag in (("model", "--model"), ("dataset", "--dataset")):
        if not given[key]:
            raise click.UsageError(f"{flag} is missing. See `anchorlens {spec.NAME} --help` for examples.")
    if not given["out"] and not given["dry_run"]:
        raise click.UsageError(f"--out is missing. See `anchorlens {spec.NAME} --help` for examples.")
    known = spec.arguments()
    values = {
        name: value if isinstance(value, bool) else known[name].kind.parse(str(value))
        for name, value in given.items()
        if name not in _NOT_SPEC and value is not None
    }
    made = spec(**values, progress=not given["quiet"])
    if given["out"]:
        from anchorlens.runs.store import check_target

        check_target(given["out"], overwrite=any(given[name] for name in ("overwrite", "resume", "force_new", "shard")))
    from anchorlens.protocols.study import DataRequest, Study
    from anchorlens.questions.datasets import parse_columns

    names = given["dataset"]
    if len(set(names)) != len(names):
        raise InputError(f"Each --dataset once; got {', '.join(names)}.")
    files = data_files(names, given["data_file"])
    columns = None if given["columns"] is None else parse_columns(given["columns"])
    data = [DataRequest(name, files.get(name), given["limit"], made.seed, columns, given["spans"]) for name in names]
    study = Study(given["model"], data, [made], given["device"], given["dtype"], given["stream"], given["n_devices"])
    if given["dry_run"]:
        plan_only(study, as_json=given["as_json"])
    else:
        measure(study, spec.NAME, given)


_EXAMPLES = {
    "swap": """\
  # two models, two data sets from the hub, one figure
  anchorlens swap --model meta-llama/Llama-3.2-1B --model meta-llama/Llama-3.2-3B \\
      --dataset popqa --dataset nq --limit 500 --out runs/llama
""",
}


def _examples(name: str) -> str:
    parts = [
        f"""\
  # the packaged model on an embedded question set
  anchorlens {name} --model smollm2-135m-instruct --dataset triviaqa-sample --limit 110 --out runs/a
""",
        _EXAMPLES.get(name, ""),
        f"""\
  # a local file with columns of its own
  anchorlens {name} --model smollm2-135m-instruct --dataset mine.csv --columns question=q,answers=gold --out runs/b
""",
        f"""\
  # how long will it take, and does it fit?
  anchorlens {name} --model Qwen/Qwen3-8B --dataset triviaqa --limit 500 --max-memory 8GB --dry-run
""",
        f"""\
  # everything in a file; flags on the command line win
  anchorlens {name} --config {name}.toml --limit 10
""",
    ]
    return "\b\nExamples:\n" + "\b\n".join(part for part in parts if part)


__all__ = ["flags_of", "measure_protocol", "protocol_command"]
