"""Build the command of each protocol from its specification."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

import click
from typing_extensions import override

from anchorlens.cli.measure import measure, plan_only
from anchorlens.cli.shared_options import (
    BACKEND_HELP,
    check_output_options,
    data_files,
    output_options,
    read_config,
)
from anchorlens.constants import BACKENDS
from anchorlens.errors import InputError
from anchorlens.progress import name_import
from anchorlens.protocols.arguments import Int, Kind, group_arguments
from anchorlens.protocols.registry import PROTOCOLS, specification_of
from anchorlens.protocols.specification import Specification


def flags_of(spec: type[Specification]) -> dict[str, str]:
    """Return the option of each argument that the command line accepts."""
    flags: dict[str, str] = {}
    for name, one in spec.arguments().items():
        if one.in_shell:
            flags[name] = one.flag or "--" + name.replace("_", "-")
    return flags


# Options of the short help, which fits a screen; ``--help-all`` lists the others too.
_SHORT = (
    *("model", "dataset", "pairs", "columns", "limit", "out", "resume", "dry_run"),
    *(
        "anchors",
        "senders",
        "receivers",
        "edges",
        "method",
        "by",
        "metric",
        "readout",
        "site",
        "n_donors",
        "known_only",
        "quick",
        "layers",
        "prompt",
    ),
    *("help_all", "help"),
)
_HELP_ALL = "anchorlens.help_all"  # key in the context of a command


class _ProtocolCommand(click.Command):
    """Command whose ``--help`` lists the main options, and ``--help-all`` all options by group."""

    titles: Mapping[str, str]

    @override
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        is_full = ctx.meta.get(_HELP_ALL, False)
        sections: dict[str, list[tuple[str, str]]] = {}
        for option in self.get_params(ctx):
            record = option.get_help_record(ctx)
            if record is None or not (is_full or option.name in _SHORT):
                continue
            flag, text = record
            title = self.titles.get(option.name or "", "Model, data and output")
            if not is_full:
                title = "Main options"
                text = _first_sentence(text)
            sections.setdefault(title, []).append((flag, text))
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)

    @override
    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        text = self.help or ""
        if not ctx.meta.get(_HELP_ALL, False):
            text = text.partition("\n\n")[0]
        with formatter.indentation():
            formatter.write_paragraph()
            formatter.write_text(text)

    @override
    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if ctx.meta.get(_HELP_ALL, False):
            super().format_epilog(ctx, formatter)
            return
        example = str(self.epilog).removeprefix("\b\n").splitlines()[:2]
        formatter.write("\n" + "\n".join(example) + "\n")


def _first_sentence(text: str) -> str:
    """Return the first sentence of a help text, with the default."""
    body, mark, default = text.partition("  [")
    sentence, _, rest = body.partition(". ")
    return f"{sentence}.{mark}{default}" if rest else text


def _show_all(ctx: click.Context, param: click.Parameter, value: bool) -> None:  # noqa: ARG001
    if value:
        ctx.meta[_HELP_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _help_option() -> click.Option:
    return click.Option(
        ["--help-all"],
        is_flag=True,
        is_eager=True,
        expose_value=False,
        callback=_show_all,
        help="Show all options and more examples, and exit.",
    )


def protocol_command(name: str) -> click.Command:
    spec = specification_of(name)
    text = spec.description() or PROTOCOLS[name]
    paragraphs = [" ".join(part.split()) for part in text.strip().split("\n\n")]
    made = _ProtocolCommand(
        name,
        params=[
            *_data_options(spec),
            *_spec_options(spec),
            *_loading_options(),
            *output_options(),
            _help_option(),
        ],
        callback=lambda **given: measure_protocol(spec, given),
        help="\n\n".join(paragraphs),
        short_help=PROTOCOLS[name],
        epilog=_examples(spec),
    )
    titles: dict[str, str] = {}
    for title, own in group_arguments(spec.arguments()).items():
        titles |= dict.fromkeys(own, title)
    made.titles = titles
    return made


def _spec_options(spec: type[Specification]) -> list[click.Parameter]:
    """Return the options of a specification; their defaults are None, so that the specification
    decides.
    """
    options: list[click.Parameter] = []
    flags = flags_of(spec)
    for name in chain.from_iterable(group_arguments(spec.arguments()).values()):
        if name not in flags:
            continue
        flag = flags[name]
        one = spec.arguments()[name]
        field = spec.model_fields[name]
        default = spec.default_of(name)
        help_text = one.help.replace("If None,", "If left out,")
        kind = next((item for item in field.metadata if isinstance(item, Kind)), None)
        if isinstance(default, bool):
            off = one.off or "--no-" + flag.lstrip("-")
            shown = (flag if default else off).lstrip("-")
            options.append(
                click.Option(
                    [f"{flag}/{off}", name], default=None, help=f"{help_text}  [default: {shown}]"
                )
            )
            continue
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        value_type: click.ParamType = click.STRING
        if isinstance(kind, Int) and not kind.word:
            value_type = click.INT
        elif "bool" in str(field.annotation):
            value_type = click.BOOL
        options.append(
            click.Option(
                [flag, name],
                default=None,
                type=value_type,
                metavar=one.metavar or (kind.metavar if kind else None),
                help=help_text if shown is None else f"{help_text}  [default: {shown}]",
            )
        )
    return options


def _data_options(spec: type[Specification]) -> list[click.Parameter]:
    options: list[click.Parameter] = [
        click.Option(
            ["--config"],
            callback=read_config,
            is_eager=True,
            expose_value=False,
            metavar="FILE",
            help="TOML file of options (model = [...], limit = 64, ...); flags take precedence.",
        ),
        click.Option(
            ["--model", "-m"],
            multiple=True,
            metavar="NAME",
            help="Hub name, directory, .gguf file or packaged model. Repeatable.",
        ),
    ]
    if spec.DATA == "pairs":
        shown = "File (csv, tsv, jsonl, json, parquet) or sample of prompt pairs. Repeatable."
        limit = click.Option(
            ["--limit"], type=int, default=None, help="Number of pairs to load from each file."
        )
        return [
            *options,
            click.Option(["--pairs"], multiple=True, metavar="FILE", help=shown),
            click.Option(
                ["--columns"],
                default=None,
                metavar="OURS=THEIRS",
                help="Columns of your files: clean=prompt,answer=target.",
            ),
            click.Option(
                ["--answers-sep"],
                default=None,
                metavar="TEXT",
                help="Separator of alternative answers in one cell, such as ';'.",
            ),
            click.Option(
                ["--answer-space"],
                default="keep",
                show_default=True,
                metavar="HOW",
                help="keep, or add (one space between prompt and answer, in the answer).",
            ),
            click.Option(
                ["--numbers"],
                default="text",
                show_default=True,
                metavar="HOW",
                help="A bare number as an answer is text (its digits) or ids (a token id).",
            ),
            limit,
        ]
    return [
        *options,
        click.Option(
            ["--dataset", "-d"],
            multiple=True,
            metavar="NAME",
            help=(
                "popqa, triviaqa, hotpotqa, nq, their -sample sets,"
                " a file, or a name for your own. Repeatable."
            ),
        ),
        click.Option(
            ["--data-file"],
            multiple=True,
            metavar="[NAME=]FILE",
            help=(
                "Local jsonl, json, csv, tsv or parquet file for a data set, in the order of"
                " --dataset or by NAME=."
            ),
        ),
        click.Option(
            ["--columns"],
            default=None,
            metavar="OURS=THEIRS",
            help="Columns of your files: question=q,answers=gold.",
        ),
        click.Option(
            ["--answers-sep"],
            default=None,
            metavar="TEXT",
            help="Separator of several answers in one cell, such as ';'.",
        ),
        click.Option(
            ["--spans"],
            default="auto",
            show_default=True,
            metavar="HOW",
            help="auto, rules, annotation or spacy:NAME.",
        ),
        click.Option(
            ["--limit"],
            type=int,
            default=None,
            help="Questions to draw from each set (seeded); donors come from all.",
        ),
    ]


def _loading_options() -> list[click.Parameter]:
    return [
        click.Option(
            ["--device"], default=None, help="cuda, mps or cpu; the best available if left out."
        ),
        click.Option(
            ["--n-devices"],
            type=int,
            default=1,
            metavar="N",
            help="CUDA devices for the model, from --device on.",
        ),
        click.Option(["--dtype"], default=None, help="float32, bfloat16 or float16."),
        click.Option(
            ["--stream"],
            is_flag=True,
            help="Read the weights layer by layer, for models larger than memory.",
        ),
        click.Option(["--backend"], type=click.Choice(BACKENDS), default=None, help=BACKEND_HELP),
    ]


def measure_protocol(spec: type[Specification], given: Mapping[str, Any]) -> None:
    source = "pairs" if spec.DATA == "pairs" else "dataset"
    for key in ("model", source):
        if not given[key]:
            raise click.UsageError(
                f"--{key} is missing. See `anchorlens {spec.NAME} --help` for examples."
            )
    values = {name: given[name] for name in flags_of(spec) if given[name] is not None}
    made = spec(**values, progress=not given["quiet"])
    check_output_options(given, spec.NAME)
    from anchorlens.questions.columns import parse_columns
    from anchorlens.running.dataset_spec import DatasetSpec

    names = given[source]
    if len(set(names)) != len(names):
        raise InputError(f"--{source}: got {', '.join(names)}. Give each once.")
    columns = None if given["columns"] is None else parse_columns(given["columns"])
    data: list[DatasetSpec] = []
    if spec.DATA == "pairs":
        for path in names:
            one = DatasetSpec(
                name=None,
                path=path,
                limit=given["limit"],
                columns=columns,
                answers_sep=given["answers_sep"],
                answer_space=given["answer_space"],
                numbers=given["numbers"],
            )
            data.append(one)
    else:
        files = data_files(names, given["data_file"])
        for name in names:
            one = DatasetSpec(
                name=name,
                path=files.get(name),
                limit=given["limit"],
                seed=made.seed,
                columns=columns,
                spans=given["spans"],
                answers_sep=given["answers_sep"],
            )
            data.append(one)
    # A file that cannot be read is said before torch and the model library are imported.
    loaded = [one.load(pairs=spec.DATA == "pairs") for one in data]
    with name_import(show=not given["quiet"]):
        from anchorlens.running.study import Study

    study = Study(
        models=given["model"],
        data=loaded,
        specifications=[made],
        device=given["device"],
        dtype=given["dtype"],
        stream=given["stream"],
        n_devices=given["n_devices"],
        backend=given["backend"],
    )
    if given["dry_run"]:
        plan_only(study, as_json=given["as_json"])
    else:
        measure(study, spec.NAME, given)


def _examples(spec: type[Specification]) -> str:
    name = spec.NAME
    start = f"\b\nExamples:\n  anchorlens {name} --model smollm2-135m-instruct"
    if name == "edges":
        return f"""{start} --pairs ioi-pairs --senders 'a1*,m1*' --receivers 'a20.*' \\
    --out runs/a
  anchorlens {name} --model gpt2 --pairs pairs.csv --method attribution --out runs/b
  anchorlens {name} --model gpt2 --pairs pairs.csv --edges 'a4.h11 -> a5.h5.k,m0 -> logits' \\
    --out runs/c
\b
  # everything behind the receiver frozen, the MLPs before it recomputed
  anchorlens {name} --model gpt2 --pairs pairs.csv --receivers logits --downstream freeze \\
    --between mlps --out runs/d
\b
  # predicted time and memory
  anchorlens {name} --model Qwen/Qwen3-8B --pairs pairs.csv --max-memory 8GB --dry-run
"""
    if spec.DATA == "pairs":
        return f"""{start} --pairs ioi-pairs --by position --out runs/a
  anchorlens {name} --model gpt2 --pairs pairs.csv --by head --site z --out runs/b
  anchorlens {name} --model gpt2 --pairs pairs.csv --by segment --site mlp_out --window 5 \\
    --metric prob --out runs/c
\b
  # one pair: values without bands or controls
  anchorlens {name} --model gpt2 --pairs pairs.csv --limit 1 --by head_position --site z \\
    --out runs/d
\b
  # predicted time and memory
  anchorlens {name} --model Qwen/Qwen3-8B --pairs pairs.csv --max-memory 8GB --dry-run
"""
    return f"""{start} --dataset triviaqa-sample --limit 110 --out runs/a
  anchorlens {name} --model smollm2-135m-instruct --dataset mine.csv \\
    --columns question=q,answers=gold --out runs/b
  anchorlens {name} --model gpt2 --model Qwen/Qwen3-8B --dataset popqa --dataset nq --limit 500 \\
    --out runs/c
\b
  # predicted time and memory
  anchorlens {name} --model Qwen/Qwen3-8B --dataset triviaqa --limit 500 --max-memory 8GB --dry-run
\b
  # options from a file; flags take precedence
  anchorlens {name} --config {name}.toml --limit 10
"""
