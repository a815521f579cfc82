"""What ``figure_llama32.py`` and ``figure_qwen3.py`` share: several models on four question sets, one figure.

Every model becomes one run directory below ``--out``. A model whose run is there already is read and not measured again, so a
stopped job goes on where it was when the same command is given once more. Beside each run lies a file with the settings that
decide its numbers; a run of other settings is refused, because the panels of one figure must agree.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import anchorlens as al
from anchorlens.errors import EmptySweepError, RunError

DATASETS = ("popqa", "triviaqa", "hotpotqa", "nq")
SMALL_MODELS = ("smollm2-135m-instruct",)
SMALL_DATASETS = tuple(f"{name}-sample" for name in DATASETS)
ANCHORS = ("question", "answer_site")


@dataclass(frozen=True)
class Settings:
    """Everything that decides the numbers of the figure, apart from the models themselves.

    Attributes:
        protocol: ``knockout``: the published figure, pathways of a truth probe. ``swap``: the same layout for activation swaps.
        datasets: Question sets, in the order of the legend.
        limit: Questions drawn from each set.
        layers: How many layers are measured, evenly spaced from the first to the last; None for all.
        n_donors: Most donors for one question.
        known_only: Whether only questions that the model answers right are measured.
        prompt: What stands before the answer.
        dtype: Type of the weights; None for the package's choice.
        seed: Of the draw, the donors, the null and the resamples.
    """

    protocol: str
    datasets: tuple[str, ...]
    limit: int
    layers: int | None
    n_donors: int
    known_only: bool
    prompt: str
    dtype: str | None
    seed: int


FULL = Settings("swap", DATASETS, limit=500, layers=None, n_donors=4, known_only=True, prompt="fewshot(4)", dtype=None, seed=0)
SMALL = Settings("swap", SMALL_DATASETS, limit=5, layers=4, n_donors=1, known_only=False, prompt="qa", dtype=None, seed=0)


def evenly_spaced(count: int | None, n_layers: int) -> list[int] | None:
    """``count`` layers from the first to the last of ``n_layers``, all (None) where ``count`` is None or not smaller.

    >>> evenly_spaced(4, 16), evenly_spaced(None, 16)
    ([0, 5, 10, 15], None)
    """
    if count is None or count >= n_layers:
        return None
    return sorted({round(i * (n_layers - 1) / max(count - 1, 1)) for i in range(count)})


def parser(models: Sequence[str], out: str) -> argparse.ArgumentParser:
    """The command line of a target figure."""
    made = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"""
Measure curves of {" and ".join(models)} and draw them side by side, for {", ".join(DATASETS)}.

--protocol swap: at each layer the stream of the question's core words (anchor "question") or of the position from which
the answer is predicted (anchor "answer_site") is replaced by that of another question. The figure shows how far the
probability of the answer falls, in percentage points.
--protocol knockout: the published figure. Attention from the question's core words is cut, a truth probe is read, and
the answers fall into two pathways. What can be claimed stands below it.

The full figure needs the models and the data sets (from the Hugging Face hub or its local cache) and an accelerator
that holds the weights. --small runs the same code in about a minute on two processor cores.
""",
        epilog=f"""
examples:
  %(prog)s --small
  %(prog)s --limit 500 --out {out}
  %(prog)s --limit 500 --out {out}      the same again: models that are there are not measured again
""",
    )
    add = made.add_argument  # in brackets: the default, then that of --small
    add("--small", action="store_true", help="the demo model and the four embedded samples, few questions, few layers")
    add("--protocol", choices=("swap", "knockout"), help="what is measured (swap)")
    add("--out", metavar="DIR", help=f"directory for figure.html and one run per model (default {out}; {out}-small)")
    add("--limit", type=int, metavar="N", help="questions drawn from each set; donors come from the whole set (500; 5)")
    add("--layers", type=int, metavar="N", help="measure N layers, evenly spaced from first to last (all; 4)")
    add("--n-donors", type=int, metavar="N", help="swap: most donors for one question, averaged first (4; 1)")
    add("--prompt", help="qa, fewshot(k) or chat (fewshot(4); qa)")
    add(
        "--known-only", action=argparse.BooleanOptionalAction,
        help="swap: measure only questions that the model answers right: where P before is low, ΔP cannot fall far (yes; no)",
    )  # fmt: skip
    add("--seed", type=int, metavar="N", help="of draw, donors, null and bootstrap (0)")
    add("--device", help="cuda, cuda:1, mps or cpu (the first that is there)")
    add(
        "--dtype",
        help="float32, bfloat16 or float16 (float32; from 10 billion parameters on an accelerator the checkpoint's own)",
    )
    add("--batch-size", type=int, metavar="N", help="rows in one forward pass (chosen for the memory at hand)")
    add("--overwrite", action="store_true", help="measure again what is there")
    return made


def settings_of(args: argparse.Namespace) -> Settings:
    """The settings of the mode, with what the arguments say in their place."""
    names = [field.name for field in fields(Settings) if field.name != "datasets"]
    given = {name: getattr(args, name) for name in names if getattr(args, name) is not None}
    return replace(SMALL if args.small else FULL, **given)


def is_there(folder: Path, settings: Settings) -> bool:
    """Whether a finished run of these settings lies in ``folder``; its settings lie beside it.

    Raises:
        RunError: A run of other settings lies there.
    """
    if not (folder / "run.json").is_file():
        return False
    file = settings_file(folder)
    theirs = json.loads(file.read_text(encoding="utf8")) if file.is_file() else {}
    theirs.setdefault("protocol", "swap")  # once there was no other
    mine = json.loads(json.dumps(asdict(settings)))  # tuples as lists, as the file has them
    differ = [f"{name} {theirs.get(name)!r} there, {value!r} now" for name, value in mine.items() if theirs.get(name) != value]
    if differ:
        raise RunError(f"{folder} was made with other settings: {'; '.join(differ)}. Choose another --out, or --overwrite.")
    return True


def settings_file(folder: Path) -> Path:
    """Where the settings of a run are kept: beside it, written after it."""
    return folder.parent / f"{folder.name}.settings.json"


def measure(
    name: str, data: Sequence[al.QAData], settings: Settings, *, device: str | None, batch_size: int | None
) -> list[al.SweepResult]:
    """One model on every set. A set of which no row is left is said and skipped: hours of work on the others stay."""
    model = al.load_model(name, device=device, dtype=settings.dtype)
    results: list[al.SweepResult] = []
    for qa in data:
        try:
            layers = evenly_spaced(settings.layers, int(model.cfg.n_layers))
            shared: Any = {"layers": layers, "prompt": settings.prompt, "batch_size": batch_size, "seed": settings.seed}
            if settings.protocol == "knockout":
                sweep = al.knockout_sweep(model, qa, **shared)
            else:
                sweep = al.swap_sweep(
                    model, qa, anchors=ANCHORS, n_donors=settings.n_donors, known_only=settings.known_only, **shared
                )
        except EmptySweepError as why:
            print(f"{name} on {qa.name} is left out: {why}", file=sys.stderr)
            continue
        results.append(sweep)
    if not results:
        raise EmptySweepError(
            f"{name}: no set has a row to measure. Try a larger --limit, another --prompt, or --no-known-only."
        )
    return results


def run(models: Sequence[str], out: Path, settings: Settings, args: argparse.Namespace) -> Path:
    """Measure what is not there yet, draw all of it, and print the strongest effects.

    Returns:
        The figure's path.
    """
    folders = [out / name.rsplit("/", 1)[-1] for name in models]
    missing = [args.overwrite or not is_there(folder, settings) for folder in folders]
    # Before the models: a data set that cannot be read should cost seconds, not hours.
    data = [al.load_qa(name, limit=settings.limit, seed=settings.seed) for name in settings.datasets] if any(missing) else []
    for name, folder, needed in zip(models, folders, missing, strict=True):
        if needed:
            results = measure(name, data, settings, device=args.device, batch_size=args.batch_size)
            al.save_run(results, folder, overwrite=args.overwrite)
            settings_file(folder).write_text(json.dumps(asdict(settings), indent=2) + "\n", encoding="utf8")
        else:
            print(f"{name}: read from {folder}")
    # From the files alone, so that a run made today and one made last week are drawn alike.
    figure = al.write_figure(
        al.plot_curves([sweep for folder in folders for sweep in al.load_run(folder)]), out / "figure.html"
    )
    for folder in folders:
        for sweep in al.load_run(folder):
            print(sweep.summary().to_string(index=False, float_format="{:.2f}".format))
    print(f"Figure: {figure}")
    return figure


def main(models: Sequence[str], out: str, argv: Sequence[str] | None = None) -> None:
    """Entry point of the two scripts.

    Args:
        models: Names of the target models, in the order of the panels.
        out: Default directory.
        argv: Arguments; those of the process where they are left out.
    """
    args = parser(models, out).parse_args(argv)
    usual = out if args.protocol in (None, "swap") else f"{out}-{args.protocol}"
    target = Path(args.out or (f"{usual}-small" if args.small else usual))
    try:
        run(SMALL_MODELS if args.small else models, target, settings_of(args), args)
    except al.AnchorlensError as why:
        print(f"Error: {why}", file=sys.stderr)
        sys.exit(why.exit_code)
