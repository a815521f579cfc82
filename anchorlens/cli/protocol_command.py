"""Build the command of each protocol from its specification."""

from collections.abc import Mapping
from typing import Any

import click
from typing_extensions import override

from anchorlens.cli.measure import measure, plan_only
from anchorlens.cli.shared_options import BACKEND_HELP, check_output_options, data_files, output_options, read_config
from anchorlens.constants import BACKENDS
from anchorlens.errors import InputError
from anchorlens.protocols.arguments import Int, Kind, group_arguments
from anchorlens.protocols.registry import PROTOCOLS, specification_of
from anchorlens.protocols.specification import Specification


def flags_of(spec: type[Specification]) -> dict[str, str]:
    """Return the option of each argument that the command line accepts."""
    return {name: one.flag or "--" + name.replace("_", "-") for name, one in spec.arguments().items() if one.in_shell}


class _ProtocolCommand(click.Command):
    """Command whose ``--help`` lists the options by group."""

    titles: Mapping[str, str]

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is not None:
                sections.setdefault(self.titles.get(option.name or "", "Model, data and output"), []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def protocol_command(name: str) -> click.Command:
    spec = specification_of(name)
    paragraphs = [" ".join(part.split()) for part in (spec.__doc__ or PROTOCOLS[name]).strip().split("\n\n")]
    made = _ProtocolCommand(
        name,
        params=[*_data_options(spec), *_spec_options(spec), *_loading_options(), *output_options()],
        callback=lambda **given: measure_protocol(spec, given),
        help="\n\n".join(paragraphs),
        short_help=PROTOCOLS[name],
        epilog=_examples(spec),
    )
    made.titles = {name: title for title, own in group_arguments(spec.arguments()).items() for name in own}
    return made


def _spec_options(spec: type[Specification]) -> list[click.Parameter]:
    """Return the options of a specification; their defaults are None, so that the specification decides."""
    options: list[click.Parameter] = []
    flags = flags_of(spec)
    for name in (name for own in group_arguments(spec.arguments()).values() for name in own if name in flags):
        flag, one, field, default = flags[name], spec.arguments()[name], spec.model_fields[name], spec.default_of(name)
        help_text = one.help.replace("If None,", "If left out,")
        kind = next((item for item in field.metadata if isinstance(item, Kind)), None)
        if isinstance(default, bool):
            off = one.off or "--no-" + flag.lstrip("-")
            shown = (flag if default else off).lstrip("-")
            options.append(click.Option([f"{flag}/{off}", name], default=None, help=f"{help_text}  [default: {shown}]"))
            continue
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        value_type = (
            click.INT if isinstance(kind, Int) and not kind.word else click.BOOL if "bool" in str(field.annotation) else click.STRING
        )
        options.append(
            click.Option(
                [flag, name], default=None, type=value_type, metavar=one.metavar or (kind.metavar if kind else None),
                help=help_text if shown is None else f"{help_text}  [default: {shown}]",
            )
        )  # fmt: skip
    return options


def _data_options(spec: type[Specification]) -> list[click.Parameter]:
    options: list[click.Parameter] = [
        click.Option(
            ["--config"], callback=read_config, is_eager=True, expose_value=False, metavar="FILE",
            help="TOML file of options (model = [...], limit = 64, ...); flags take precedence.",
        ),
        click.Option(
            ["--model", "-m"], multiple=True, metavar="NAME",
            help="Hub name, directory, .gguf file or packaged model. Repeatable.",
        ),
    ]  # fmt: skip
    if spec.DATA == "pairs":
        shown = "File (csv, tsv, jsonl, json, parquet) or sample of prompt pairs. Repeatable."
        limit = click.Option(["--limit"], type=int, default=None, help="Number of pairs to load from each file.")
        return [*options, click.Option(["--pairs"], multiple=True, metavar="FILE", help=shown), limit]
    return [
        *options,
        click.Option(
            ["--dataset", "-d"], multiple=True, metavar="NAME",
            help="popqa, triviaqa, hotpotqa, nq, their -sample sets, a file, or a name for your own. Repeatable.",
        ),
        click.Option(
            ["--data-file"], multiple=True, metavar="[NAME=]FILE",
            help="Local jsonl, json, csv, tsv or parquet file for a data set, in the order of --dataset or by NAME=.",
        ),
        click.Option(["--columns"], default=None, metavar="OURS=THEIRS", help="Columns of your files: question=q,answers=gold."),
        click.Option(["--answers-sep"], default=None, metavar="TEXT", help="Separator of several answers in one cell, such as ';'."),
        click.Option(["--spans"], default="auto", show_default=True, metavar="HOW", help="auto, rules, annotation or spacy:NAME."),
        click.Option(["--limit"], type=int, default=None, help="Questions to draw from each set (seeded); donors come from all."),
    ]  # fmt: skip


def _loading_options() -> list[click.Parameter]:
    return [
        click.Option(["--device"], default=None, help="cuda, mps or cpu; the best available if left out."),
        click.Option(["--n-devices"], type=int, default=1, metavar="N", help="CUDA devices for the model, from --device on."),
        click.Option(["--dtype"], default=None, help="float32, bfloat16 or float16."),
        click.Option(["--stream"], is_flag=True, help="Read the weights layer by layer, for models larger than memory."),
        click.Option(["--backend"], type=click.Choice(BACKENDS), default=None, help=BACKEND_HELP),
    ]  # fmt: skip


def measure_protocol(spec: type[Specification], given: Mapping[str, Any]) -> None:
    source = "pairs" if spec.DATA == "pairs" else "dataset"
    for key in ("model", source):
        if not given[key]:
            raise click.UsageError(f"--{key} is missing. See `anchorlens {spec.NAME} --help` for examples.")
    values = {name: given[name] for name in flags_of(spec) if given[name] is not None}
    made = spec(**values, progress=not given["quiet"])
    check_output_options(given, spec.NAME)
    from anchorlens.questions.columns import parse_columns
    from anchorlens.running.study import DatasetSpec, Study

    names = given[source]
    if len(set(names)) != len(names):
        raise InputError(f"--{source}: got {', '.join(names)}. Give each once.")
    if spec.DATA == "pairs":
        data = [DatasetSpec(None, path, given["limit"]) for path in names]
    else:
        files = data_files(names, given["data_file"])
        columns = None if given["columns"] is None else parse_columns(given["columns"])
        data = [
            DatasetSpec(name, files.get(name), given["limit"], made.seed, columns, given["spans"], answers_sep=given["answers_sep"])
            for name in names
        ]
    study = Study(
        given["model"], data, [made], given["device"], given["dtype"], given["stream"], given["n_devices"], given["backend"]
    )
    if given["dry_run"]:
        plan_only(study, as_json=given["as_json"])
    else:
        measure(study, spec.NAME, given)


def _examples(spec: type[Specification]) -> str:
    name = spec.NAME
    start = f"\b\nExamples:\n  anchorlens {name} --model smollm2-135m-instruct"
    if spec.DATA == "pairs":
        return f"""{start} --pairs ioi-pairs --by position --out runs/a
  anchorlens {name} --model gpt2 --pairs pairs.csv --by head --site z --out runs/b
  anchorlens {name} --model gpt2 --pairs pairs.csv --by segment --site mlp_out --window 5 --metric prob --out runs/c
\b
  # one pair: values without bands or controls
  anchorlens {name} --model gpt2 --pairs pairs.csv --limit 1 --by head_position --site z --out runs/d
\b
  # predicted time and memory
  anchorlens {name} --model Qwen/Qwen3-8B --pairs pairs.csv --max-memory 8GB --dry-run
"""
    return f"""{start} --dataset triviaqa-sample --limit 110 --out runs/a
  anchorlens {name} --model smollm2-135m-instruct --dataset mine.csv --columns question=q,answers=gold --out runs/b
  anchorlens {name} --model gpt2 --model Qwen/Qwen3-8B --dataset popqa --dataset nq --limit 500 --out runs/c
\b
  # predicted time and memory
  anchorlens {name} --model Qwen/Qwen3-8B --dataset triviaqa --limit 500 --max-memory 8GB --dry-run
\b
  # options from a file; flags take precedence
  anchorlens {name} --config {name}.toml --limit 10
"""
