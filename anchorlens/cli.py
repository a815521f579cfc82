"""The command line: the same calls as in Python, from a shell.

Exit codes: 0 all went well; 1 the work failed or was stopped; 2 the input has to change. Nothing heavy is imported before a
command runs, so that ``--help`` answers at once. Tables and paths go to standard output, progress and warnings to standard error.
"""

import json
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from anchorlens import __version__
from anchorlens.cli_input import parse_layers, read_config
from anchorlens.cli_output import listing, note, report
from anchorlens.cli_run import Request, check_protocol, load_data, plan_only, sweeps
from anchorlens.errors import AnchorlensError, EmptySweepError, InputError, did_you_mean

EPILOG_RUN = """\b
Examples:
  # the packaged model on an embedded question set
  anchorlens run --model smollm2-135m-instruct --dataset popqa-sample --limit 40 --known-only --out runs/demo
\b
  # two models, two data sets from the hub, one figure
  anchorlens run --model meta-llama/Llama-3.2-1B --model meta-llama/Llama-3.2-3B \\
      --dataset popqa --dataset nq --limit 500 --out runs/llama
\b
  # a local file of the same schema
  anchorlens run --model smollm2-135m-instruct --dataset popqa --data-file popqa.jsonl --limit 64 --out runs/a
\b
  # attention from the question cut off, a truth probe read at every layer, with placebos
  anchorlens run --model smollm2-135m-instruct --dataset popqa-sample --protocol knockout --out runs/ko
\b
  # how long will it take, and does it fit?
  anchorlens run --model Qwen/Qwen3-8B --dataset triviaqa --limit 500 --max-memory 8GB --dry-run
\b
  # everything in a file; flags on the command line win
  anchorlens run --config run.toml --limit 10
"""

EPILOG_FIGURE = """\b
Examples:
  anchorlens figure runs/a runs/b --out figure.html
  anchorlens figure runs/a --anchors question --no-controls --out question.html
"""


def _say(text: str = "") -> None:
    click.echo(text)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="anchorlens")
def cli() -> None:
    """Does a language model's answer come from the question or from the answer?

    \b
    anchorlens changes activations at question- or answer-anchored tokens, layer by layer (swaps of residual streams,
    attention knockout), and draws how far a probability falls: ΔP curves, with 95 % bands and controls beside each.
    \b
      anchorlens models                 what can be loaded
      anchorlens datasets               question sets, and the schema of your own
      anchorlens run ... --out runs/a   measure; writes tables and a figure
      anchorlens figure runs/a runs/b   one figure from several runs

    `anchorlens COMMAND --help` shows examples.
    """


@cli.command(epilog=EPILOG_RUN)
@click.option(
    "--config",
    callback=read_config,
    is_eager=True,
    expose_value=False,
    metavar="FILE",
    help="TOML file with any of the options below (model = [...], limit = 64, ...); flags win.",
)
@click.option(
    "--model",
    "-m",
    multiple=True,
    metavar="NAME",
    help="Hub name, directory, .gguf file or packaged model. May be given several times.",
)
@click.option(
    "--dataset",
    "-d",
    multiple=True,
    metavar="NAME",
    help="popqa, triviaqa, hotpotqa, nq, their -sample sets, or a name for your own file. Several times for several.",
)
@click.option(
    "--data-file",
    multiple=True,
    metavar="[NAME=]FILE",
    help="Local jsonl, json, csv, tsv or parquet file for a data set, in the order of --dataset or by NAME=.",
)
@click.option(
    "--protocol",
    type=click.Choice(["swap", "knockout"]),
    default="swap",
    show_default=True,
    help="swap: streams are replaced by a donor's; knockout: attention edges are cut and a truth probe is read.",
)
@click.option(
    "--anchors",
    default="question,answer_site",
    show_default=True,
    metavar="A,B",
    help="[swap] Roles whose activations are swapped, each on its own.",
)
@click.option(
    "--readout",
    default=None,
    help="[swap] first_token (default), answer_mean or answer_joint; probe or p_true.  [knockout] probe (default) or p_true.",
)
@click.option(
    "--site",
    default=None,
    help="[swap] Where streams are replaced: resid_pre (default), resid_mid, resid_post, attn_out, mlp_out.  "
    "[knockout] Where the probe reads: resid_post (default), mlp_out, attn_out.",
)
@click.option(
    "--window",
    default=None,
    type=int,
    help="Layers that are changed together.  [swap] 1 by default.  [knockout] all layers up to the one read by default.",
)
@click.option(
    "--edges", default="question -> later", show_default=True, metavar="'A -> B'", help="[knockout] Attention that is cut."
)
@click.option(
    "--mode",
    default="mask",
    show_default=True,
    help="[knockout] mask: before the softmax, weights renormalise; zero: after it.",
)
@click.option("--cut-layers", default=None, metavar="0-11", help="[knockout] Cut edges in these layers only; all if left out.")
@click.option("--heads", default=None, metavar="0,3", help="[knockout] Only these query heads; all if left out.")
@click.option(
    "--answers",
    default="given",
    show_default=True,
    help="[truth readouts] given: gold answers against others'; generated: the model's own.",
)
@click.option(
    "--distractor", default="matched", show_default=True, help="[truth readouts] Given false answers: matched or random."
)
@click.option(
    "--delta-kind", default="confidence", show_default=True, help="[truth readouts] confidence, signed or true_label."
)
@click.option(
    "--split", default="fixed", show_default=True, help="[knockout] Pathways by the flip at k* (fixed) or per_layer."
)
@click.option("--placebos/--no-placebos", default=True, show_default=True, help="[knockout] Measure the placebo splits.")
@click.option(
    "--direction",
    default="noising",
    show_default=True,
    help="[swap] noising (is it necessary?) or denoising (is it sufficient?).",
)
@click.option(
    "--donors", default="same_relation", show_default=True, help="[swap] same_relation, random, mean, zero or noise."
)
@click.option("--n-donors", default=4, show_default=True, type=int, help="[swap] Most donors for one question.")
@click.option(
    "--align",
    default="equal",
    show_default=True,
    help="[swap] equal: paired segments of one length; last: paired from their last token.",
)
@click.option("--layers", default=None, metavar="SPEC", help="All, or e.g. 0-11 or 0,4,8 or 0-28:4.")
@click.option(
    "--known-only/--all-rows",
    default=False,
    show_default=True,
    help="[swap] Keep only questions that the model answers right.",
)
@click.option("--prompt", default="qa", show_default=True, metavar="P", help="qa, fewshot(k), fewshot(k, seed=s) or chat.")
@click.option(
    "--null-donors",
    default=1,
    show_default=True,
    type=int,
    help="[swap] Donors of each question that measure the null too; 0: no null.",
)
@click.option(
    "--limit", type=int, default=None, help="Questions drawn from each data set (seeded); donors come from the whole file."
)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option(
    "--batch-size", type=int, default=None, help="Rows in one forward pass; chosen for the memory at hand if left out."
)
@click.option(
    "--engine",
    default="cone",
    show_default=True,
    help="cone: one pass for all layers; reference: one full forward pass for each cell, slow and plain.",
)
@click.option(
    "--max-memory",
    default=None,
    metavar="SIZE",
    help="Most memory beside the model, e.g. 2GB or 512MiB; half of what is free if left out.",
)
@click.option(
    "--check-cells",
    type=int,
    default=4,
    show_default=True,
    help="So many random cells are measured again by the reference engine; a difference stops the run.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Only print what would be measured: cells, batches, FLOPs, seconds, memory. Needs no --out; answers that a sweep "
    "starts from are still generated.",
)
@click.option("--max-new-tokens", type=int, default=16, show_default=True, help="Longest generated answer.")
@click.option("--resamples", type=int, default=1000, show_default=True, help="Bootstrap resamples of the bands.")
@click.option("--device", default=None, help="cuda, mps or cpu; the best one if left out.")
@click.option("--dtype", default=None, help="float32, bfloat16 or float16.")
@click.option("--out", "-o", default=None, metavar="DIR", help="Run directory to write.  [required]")
@click.option("--overwrite", is_flag=True, help="Replace a run that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
@click.option("--quiet", "-q", is_flag=True, help="No progress bars.")
def run(
    model: tuple[str, ...], dataset: tuple[str, ...], data_file: tuple[str, ...], protocol: str, anchors: str,
    readout: str | None, site: str | None, window: int | None, edges: str, mode: str, cut_layers: str | None,
    heads: str | None, answers: str,
    distractor: str, delta_kind: str, split: str, placebos: bool, direction: str, donors: str, n_donors: int, align: str,
    layers: str | None,
    known_only: bool, prompt: str, null_donors: int, limit: int | None, seed: int, batch_size: int | None, max_new_tokens: int,
    resamples: int, device: str | None, dtype: str | None, out: str | None, overwrite: bool, as_json: bool, quiet: bool,
    engine: str, max_memory: str | None, check_cells: int, dry_run: bool,
) -> None:  # fmt: skip
    """Measure ΔP at every layer, and write a run directory: tables, figure.html, run.json."""
    for value, name in ((model, "--model"), (dataset, "--dataset"), (out or dry_run, "--out")):
        if not value:
            raise click.UsageError(f"{name} is missing. See `anchorlens run --help` for examples.")
    check_protocol(protocol)
    from anchorlens.results.runs import check_target, save_run

    if out is not None:
        check_target(out, overwrite=overwrite)
    chosen = parse_layers(layers)
    data = load_data(dataset, data_file, limit, seed)
    options: dict[str, Any] = {
        "layers": chosen, "answers": answers, "distractor": distractor, "delta_kind": delta_kind, "prompt": prompt,
        "max_new_tokens": max_new_tokens, "n_resamples": resamples, "batch_size": batch_size, "seed": seed, "progress": not quiet,
        "engine": engine, "max_memory": max_memory, "check_cells": check_cells,
        **{key: value for key, value in (("readout", readout), ("site", site), ("window", window)) if value is not None},
    }  # fmt: skip
    if protocol == "swap":
        options |= {
            "anchors": [a.strip() for a in anchors.split(",") if a.strip()], "direction": direction, "donors": donors,
            "n_donors": n_donors, "align": align, "known_only": known_only, "null_donors": null_donors,
        }  # fmt: skip
    else:
        options |= {
            "edges": edges,
            "mode": mode,
            "heads": parse_layers(heads, "--heads"),
            "split": split,
            "placebos": placebos,
        }
        cut = parse_layers(cut_layers, "--cut-layers")
        options |= {"cut_layers": None if cut is None else (cut[0], cut[-1])}
    request = Request(protocol, model, data, options, device, dtype)
    if dry_run:
        plan_only(request, as_json=as_json)
        return
    assert out is not None
    results, empty = sweeps(request)
    if not results:
        raise EmptySweepError(" ".join(empty))
    target = save_run(results, out, overwrite=overwrite)
    report(results, target, as_json=as_json)
    if empty:
        note(f"{len(empty)} of {len(empty) + len(results)} sweeps had no row; the others are saved.")
        sys.exit(1)


@cli.command(epilog=EPILOG_FIGURE)
@click.argument("runs", nargs=-1, required=True, metavar="RUN...")
@click.option("--out", "-o", default="figure.html", show_default=True, metavar="FILE", help="HTML file to write.")
@click.option("--title", default=None, help="A title in place of the one that names protocol, readout and anchors.")
@click.option("--anchors", default=None, metavar="A,B", help="Only these anchors.")
@click.option("--controls/--no-controls", default=True, show_default=True, help="Draw the nulls as dotted lines.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def figure(runs: tuple[str, ...], out: str, title: str | None, anchors: str | None, controls: bool, as_json: bool) -> None:
    """Draw the curves of one or more runs as one interactive HTML file: a panel for each model."""
    import pandas as pd

    from anchorlens.figures.curves import plot_curves
    from anchorlens.figures.page import save_html
    from anchorlens.results.runs import load_curves

    curves = pd.concat([load_curves(path) for path in runs], ignore_index=True)
    if anchors is not None:
        wanted = [a.strip() for a in anchors.split(",")]
        there = list(curves["anchor"].unique())
        unknown = [a for a in wanted if a not in there]
        if unknown:
            raise InputError(f"No curve of anchor '{unknown[0]}' in these runs. {did_you_mean(unknown[0], there)}")
        curves = curves[curves["anchor"].isin(wanted)]
    save_html(plot_curves(curves, title=title, controls=controls), Path(out))
    _say(json.dumps({"figure": out, "runs": list(runs)}) if as_json else f"figure  {out}")


@cli.command(epilog="\b\nExamples:\n  anchorlens models\n  anchorlens models --all --json\n")
@click.option(
    "--all", "everything", is_flag=True, help="Every name that TransformerLens registers too (imports it: some seconds)."
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list for scripts.")
def models(everything: bool, as_json: bool) -> None:
    """List models that can be loaded by name.

    Any local directory or hub name of the Llama, Mistral, Qwen2, Qwen3, Gemma 2, Gemma 3, GPT-2 and GPT-NeoX families works too,
    and so does a .gguf file of one of them.
    """
    from anchorlens.models.names import known_models

    listing("Models", known_models(everything), as_json=as_json)


@cli.command(epilog="\b\nExamples:\n  anchorlens datasets\n  anchorlens run --dataset mine --data-file mine.jsonl ...\n")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list for scripts.")
def datasets(as_json: bool) -> None:
    """List question sets, and say what your own file must hold.

    \b
    Your own file (jsonl, json, csv, tsv, parquet) needs the columns
      question   text
      answers    list of gold aliases (or answer: one text)
    and may have: id, relation, answer_type, popularity, subject and property (text that occurs once in the question),
    or subject_span and property_span ([start, end] in characters).
    """
    from anchorlens.questions.datasets import known_datasets

    listing("Question sets", known_datasets(), as_json=as_json)


def _show_warning(message: Warning | str, category: type[Warning], *_: object) -> None:
    if issubclass(category, UserWarning):
        note(f"Warning: {message}")


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the ``anchorlens`` command."""
    warnings.showwarning = _show_warning  # one line on standard error, without file names
    try:
        code = cli.main(args=None if argv is None else list(argv), prog_name="anchorlens", standalone_mode=False)
    except AnchorlensError as why:
        note(f"Error: {why}")
        sys.exit(why.exit_code)
    except click.ClickException as why:
        why.show()
        sys.exit(why.exit_code)
    except (KeyboardInterrupt, click.Abort):
        note("\nStopped. Nothing was written.")
        sys.exit(1)
    except OSError as why:
        note(f"Error: {why}. Nothing was written.")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)
