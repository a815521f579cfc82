"""Shared code of ``figure_llama32.py`` and ``figure_qwen3.py``: several models on four question
sets, one figure.

Each model is a study in its own run directory below ``--out``. A model that does not fit on the
device is streamed layer by layer. ``--estimate`` prints size, download and time of each sweep. The
same command continues a stopped study and reads a finished one.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path

import anchorlens as al

DATASETS = ("popqa", "triviaqa", "hotpotqa", "nq")
SMALL_MODELS = ("smollm2-135m-instruct",)
SMALL_DATASETS = tuple(f"{name}-sample" for name in DATASETS)
PROTOCOLS = ("knockout", "swap")


@dataclass(frozen=True)
class Settings:
    """Settings that determine the numbers of the figure, apart from the models.

    Attributes:
        protocols: Protocols; each is one panel for each model.
        datasets: Question sets, in the order of the legend.
        limit: Number of questions drawn from each set.
        layers: Number of layers of a swap, evenly spaced from the first to the last. If None, all.
        prompt: Name or text of the prompt.
        known_only: Whether swaps keep only questions that the model answers correctly. Where P is
            near 0, it cannot fall.
        seed: Random seed of every draw.
    """

    protocols: tuple[str, ...]
    datasets: tuple[str, ...]
    limit: int
    layers: int | None
    prompt: str
    known_only: bool
    seed: int


FULL = Settings(
    ("knockout",), DATASETS, limit=2000, layers=None, prompt="qa", known_only=False, seed=0
)
SMALL = Settings(
    PROTOCOLS, SMALL_DATASETS, limit=120, layers=8, prompt="qa", known_only=True, seed=0
)


def evenly_spaced(count: int | None, n_layers: int) -> list[int] | None:
    """Return ``count`` of ``n_layers`` layers from the first to the last; None (all) if ``count``
    is None or not smaller.

    >>> evenly_spaced(4, 16), evenly_spaced(None, 16)
    ([0, 5, 10, 15], None)
    """
    if count is None or count >= n_layers:
        return None
    return sorted({round(i * (n_layers - 1) / max(count - 1, 1)) for i in range(count)})


def parser(models: Sequence[str], out: str) -> argparse.ArgumentParser:
    """Return the argument parser of a target figure."""
    made = argparse.ArgumentParser(
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description=f"""
Measure {" and ".join(models)} and draw their curves side by side.

knockout (the published protocol): attention from the exact question tokens is cut, and a truth
probe is read. The figure shows the change of its confidence for rows whose prediction flips
(Q-Anchored) and for the others (A-Anchored). These curves describe. The claims are contrasts with
a placebo (a cut of other question tokens), over all rows, in five splits.
swap: at each layer the residual stream at the exact question tokens, or at the position that
predicts the answer, is replaced by that of another question, and the probability of the answer is
read. The claims are differences from two nulls: a swap of other positions, and a change of the same
norm and angle in another direction.

The full figure needs the models and {", ".join(DATASETS)} (from the Hugging Face hub or its local
cache). A model that does not fit on the device is streamed, layer by layer. --small runs the same
code on the demo model and embedded questions.
""",
        epilog=f"""
examples:
  %(prog)s --small
  %(prog)s --estimate                   print memory, disk space and time; measure nothing
  %(prog)s --out {out}
  %(prog)s --out {out}      the same command again: continue a stopped run
""",
    )
    add = made.add_argument  # help: (default; default with --small)
    add(
        "--small",
        action="store_true",
        help="the demo model and the four embedded samples, both protocols side by side",
    )
    add(
        "--estimate",
        action="store_true",
        help="print the cost and measure nothing; downloads the models",
    )
    add("--models", nargs="+", metavar="MODEL", help="other names or directories, one panel each")
    add("--protocols", nargs="+", choices=PROTOCOLS, help="(knockout; knockout swap)")
    add(
        "--datasets",
        nargs="+",
        metavar="SET",
        help="question sets, or NAME=FILE with that schema (the four; samples)",
    )
    add(
        "--out",
        metavar="DIR",
        help=f"directory for figure.html and one run per model (default {out}; {out}-small)",
    )
    add(
        "--limit",
        type=int,
        metavar="N",
        help="questions drawn from each set; donors come from the whole set (2000; 120)",
    )
    add(
        "--layers", type=int, metavar="N", help="number of layers of a swap, evenly spaced (all; 8)"
    )
    add("--prompt", help="qa, fewshot(k) or chat (qa)")
    add(
        "--known-only",
        action=argparse.BooleanOptionalAction,
        help="swap only questions that the model answers correctly (no; yes)",
    )
    add("--seed", type=int, metavar="N", help="random seed of every draw (0)")
    add("--device", help="cuda, cuda:1, mps or cpu (the first available)")
    add(
        "--n-devices",
        type=int,
        default=1,
        metavar="N",
        help="spread each model over N devices, from --device on (1)",
    )
    add(
        "--dtype",
        help=(
            "float32, bfloat16 or float16 (float32; on a GPU from 10 billion parameters the"
            " checkpoint's own)"
        ),
    )
    add(
        "--stream",
        choices=("auto", "always", "never"),
        default="auto",
        help="read weights layer by layer (auto: models that do not fit)",
    )
    add(
        "--max-memory",
        metavar="SIZE",
        help="maximum memory beside the weights, for example 8GB (half of the free memory)",
    )
    add("--restart", action="store_true", help="delete measured results and start again")
    return made


def settings_of(args: argparse.Namespace) -> Settings:
    """Return the settings of the mode, with the given arguments in place of its defaults."""
    given = {
        field.name: getattr(args, field.name)
        for field in fields(Settings)
        if getattr(args, field.name) is not None
    }
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return replace(SMALL if args.small else FULL, **given | lists)


def study_of(
    model: str, size: al.ModelSize, settings: Settings, args: argparse.Namespace
) -> al.Study:
    """Return the study of one model."""
    sets = [name.partition("=") for name in settings.datasets]
    data = [
        al.DatasetSpec(name, path or None, limit=settings.limit, seed=settings.seed)
        for name, _, path in sets
    ]
    same = {"prompt": settings.prompt, "seed": settings.seed, "max_memory": args.max_memory}
    layers = evenly_spaced(settings.layers, size.n_layers)
    made = {
        "knockout": lambda: al.Knockout(**same),
        "swap": lambda: al.Swap(layers=layers, n_donors=1, known_only=settings.known_only, **same),
    }
    stream = args.stream == "always" or (args.stream == "auto" and not size.fits)
    where = {
        "device": args.device,
        "n_devices": 1 if stream else args.n_devices,
        "dtype": args.dtype,
        "stream": stream,
    }
    return al.Study([model], data, [made[name]() for name in settings.protocols], **where)


def print_estimate(study: al.Study) -> None:
    """Print the predicted cost of each sweep of a study."""
    seconds = 0.0
    for one in al.plan_study(study):
        print(f"  {one.protocol} on {one.dataset}: {one.plan or one.why}")
        seconds += one.plan.seconds if one.plan else 0.0
    print(
        f"  total: about {seconds / 3600:.1f} hours"
        if seconds > 3600
        else f"  total: about {seconds:.0f} s"
    )


def run(
    models: Sequence[str], out: Path, settings: Settings, args: argparse.Namespace
) -> Path | None:
    """Estimate the cost, measure the missing sweeps, draw the figure and print the verdicts and the
    adjusted claims.

    Returns:
        Path of the figure. If only an estimate was requested, None.
    """
    sizes = [
        al.model_size(name, args.device, args.dtype, n_devices=args.n_devices) for name in models
    ]
    for size in sizes:
        print(size)
    studies = [
        study_of(name, size, settings, args) for name, size in zip(models, sizes, strict=True)
    ]
    if args.estimate:
        for study in studies:
            print(f"{study.models[0]}{', streamed' if study.stream else ''}:")
            print_estimate(study)
        return None
    folders = [out / name.rstrip("/").rsplit("/", 1)[-1] for name in models]
    for study, folder in zip(studies, folders, strict=True):
        # A set without rows is reported and skipped, so that the sweeps of the others are kept.
        al.run_study(
            study,
            folder,
            resume=not args.restart,
            restart=args.restart,
            overwrite=args.restart,
            on_empty=lambda why: print(why, file=sys.stderr),
        )
    # Read all sweeps from files, so that new and older runs are drawn alike.
    sweeps = [sweep for folder in folders for sweep in al.load_run(folder)]
    figure = al.save_html(al.plot_curves(sweeps), out / "figure.html")
    for sweep in sweeps:
        print(f"\n{sweep.protocol.name}, {sweep.model} on {sweep.dataset}\n{sweep.verdict}")
    claims = al.adjust_claims(sweeps)
    if claims["run_id"].nunique() > 1:
        columns = ["model", "dataset", "quantity", "value", "p_holm", "status_alone", "status"]
        print(
            f"\nClaims of {', '.join(claims['protocol'].unique())}, adjusted over the sweeps"
            " (Holm):"
        )
        print(claims[columns].to_string(index=False, float_format="{:.3g}".format))
    print(f"\nFigure: {figure}")
    return figure


def main(models: Sequence[str], out: str, argv: Sequence[str] | None = None) -> None:
    """Entry point of the two scripts.

    Args:
        models: Names of the target models, in the order of the panels.
        out: Default directory.
        argv: Arguments. If None, those of the process.
    """
    args = parser(models, out).parse_args(argv)
    target = Path(args.out or (f"{out}-small" if args.small else out))
    try:
        run(
            args.models or (SMALL_MODELS if args.small else models), target, settings_of(args), args
        )
    except al.AnchorlensError as why:
        print(f"Error: {why}", file=sys.stderr)
        sys.exit(why.exit_code)
    except KeyboardInterrupt:
        print("\nStopped. The same command continues.", file=sys.stderr)
        sys.exit(1)
