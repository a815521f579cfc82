"""What ``figure_llama32.py`` and ``figure_qwen3.py`` share: several models on four question sets, one figure.

Each model is a study in a run directory of its own below ``--out``. First its size is looked at: whether it fits on the card at
hand, or its layers are streamed, and what has to be downloaded; ``--estimate`` then has the planner say what the sweeps take. A
study that was stopped goes on where it was when the same command is given once more; one that is finished is read.
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
    """Everything that decides the numbers of the figure, apart from the models themselves.

    Attributes:
        protocols: What is measured: each has its own panel for each model.
        datasets: Question sets, in the order of the legend.
        limit: Questions drawn from each set.
        layers: How many layers a swap measures, evenly spaced from the first to the last; None for all.
        prompt: What stands before the answer.
        seed: Of everything that is drawn.
    """

    protocols: tuple[str, ...]
    datasets: tuple[str, ...]
    limit: int
    layers: int | None
    prompt: str
    seed: int


FULL = Settings(("knockout",), DATASETS, limit=2000, layers=None, prompt="qa", seed=0)
SMALL = Settings(PROTOCOLS, SMALL_DATASETS, limit=120, layers=8, prompt="qa", seed=0)


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
Measure {" and ".join(models)} and draw their curves side by side.

knockout (the published protocol): attention from the question's exact tokens is cut, a truth probe reads the answer, and the
figure shows how far its confidence falls, for rows whose prediction flips (Q-Anchored) and for the others (A-Anchored).
swap: at each layer the stream of the question's core words, or of the position from which the answer is predicted, is
replaced by that of another question, and the probability of the answer is read.

The full figure needs the models and {", ".join(DATASETS)} (from the Hugging Face hub or its local cache). A model that does not
fit on the card is streamed, layer by layer. --small runs the same code on the demo model and embedded questions.
""",
        epilog=f"""
examples:
  %(prog)s --small
  %(prog)s --estimate                   what it takes: memory, disk, time; nothing is measured
  %(prog)s --out {out}
  %(prog)s --out {out}      the same again: goes on where it was stopped
""",
    )
    add = made.add_argument  # in brackets: the default, then that of --small
    add("--small", action="store_true", help="the demo model and the four embedded samples, both protocols side by side")
    add("--estimate", action="store_true", help="say what it takes and measure nothing; downloads the models")
    add("--models", nargs="+", metavar="MODEL", help="other names or directories, one panel each")
    add("--protocols", nargs="+", choices=PROTOCOLS, help="(knockout; knockout swap)")
    add(
        "--datasets", nargs="+", metavar="SET", help="question sets; NAME=FILE reads a file of that schema (the four; samples)"
    )
    add("--out", metavar="DIR", help=f"directory for figure.html and one run per model (default {out}; {out}-small)")
    add("--limit", type=int, metavar="N", help="questions drawn from each set; donors come from the whole set (2000; 120)")
    add("--layers", type=int, metavar="N", help="a swap measures N layers, evenly spaced (all; 8)")
    add("--prompt", help="qa, fewshot(k) or chat (qa)")
    add("--seed", type=int, metavar="N", help="of everything that is drawn (0)")
    add("--device", help="cuda, cuda:1, mps or cpu (the first that is there)")
    add("--n-devices", type=int, default=1, metavar="N", help="spread each model over N cards, from --device on (1)")
    add("--dtype", help="float32, bfloat16 or float16 (float32; from 10 billion parameters on a card the checkpoint's own)")
    add(
        "--stream",
        choices=("auto", "always", "never"),
        default="auto",
        help="read weights layer by layer (auto: what does not fit)",
    )
    add("--max-memory", metavar="SIZE", help="most memory beside the weights, for example 8GB (half of what is free)")
    add("--restart", action="store_true", help="throw away what was measured")
    return made


def settings_of(args: argparse.Namespace) -> Settings:
    """The settings of the mode, with what the arguments say in their place."""
    given = {field.name: getattr(args, field.name) for field in fields(Settings) if getattr(args, field.name) is not None}
    lists = {name: tuple(value) for name, value in given.items() if isinstance(value, list)}
    return replace(SMALL if args.small else FULL, **given | lists)


def study_of(model: str, size: al.ModelSize, settings: Settings, args: argparse.Namespace) -> al.Study:
    """What is measured of one model."""
    sets = [name.partition("=") for name in settings.datasets]
    data = [al.DatasetSpec(name, path or None, limit=settings.limit, seed=settings.seed) for name, _, path in sets]
    same = {"prompt": settings.prompt, "seed": settings.seed, "max_memory": args.max_memory}
    layers = evenly_spaced(settings.layers, size.n_layers)
    made = {"knockout": lambda: al.Knockout(**same), "swap": lambda: al.Swap(layers=layers, n_donors=1, **same)}
    stream = args.stream == "always" or (args.stream == "auto" and not size.fits)
    where = {"device": args.device, "n_devices": 1 if stream else args.n_devices, "dtype": args.dtype, "stream": stream}
    return al.Study([model], data, [made[name]() for name in settings.protocols], **where)


def estimated(study: al.Study) -> None:
    """Print what each sweep of a study takes."""
    seconds = 0.0
    for one in al.plan_study(study):
        print(f"  {one.protocol} on {one.dataset}: {one.plan or one.why}")
        seconds += one.plan.seconds if one.plan else 0.0
    print(f"  all of it about {seconds / 3600:.1f} hours" if seconds > 3600 else f"  all of it about {seconds:.0f} s")


def run(models: Sequence[str], out: Path, settings: Settings, args: argparse.Namespace) -> Path | None:
    """Estimate, measure what is not there yet, draw all of it, and print what was found.

    Returns:
        The figure's path; None where only an estimate was asked for.
    """
    sizes = [al.model_size(name, args.device, args.dtype, n_devices=args.n_devices) for name in models]
    for size in sizes:
        print(size)
    studies = [study_of(name, size, settings, args) for name, size in zip(models, sizes, strict=True)]
    if args.estimate:
        for study in studies:
            print(f"{study.models[0]}{', streamed' if study.stream else ''}:")
            estimated(study)
        return None
    folders = [out / name.rstrip("/").rsplit("/", 1)[-1] for name in models]
    for study, folder in zip(studies, folders, strict=True):
        # A set of which no row is left is said and skipped: hours of work on the others stay.
        al.run_study(
            study, folder, resume=not args.restart, restart=args.restart, overwrite=args.restart,
            on_empty=lambda why: print(why, file=sys.stderr),
        )  # fmt: skip
    # From the files alone, so that a run made today and one made last week are drawn alike.
    sweeps = [sweep for folder in folders for sweep in al.load_run(folder)]
    figure = al.save_html(al.plot_curves(sweeps), out / "figure.html")
    for sweep in sweeps:
        print(f"\n{sweep.protocol.name}, {sweep.model} on {sweep.dataset}\n{sweep.verdict}")
    print(f"\nFigure: {figure}")
    return figure


def main(models: Sequence[str], out: str, argv: Sequence[str] | None = None) -> None:
    """Entry point of the two scripts.

    Args:
        models: Names of the target models, in the order of the panels.
        out: Default directory.
        argv: Arguments; those of the process where they are left out.
    """
    args = parser(models, out).parse_args(argv)
    target = Path(args.out or (f"{out}-small" if args.small else out))
    try:
        run(args.models or (SMALL_MODELS if args.small else models), target, settings_of(args), args)
    except al.AnchorlensError as why:
        print(f"Error: {why}", file=sys.stderr)
        sys.exit(why.exit_code)
    except KeyboardInterrupt:
        print("\nStopped. The same command goes on from here.", file=sys.stderr)
        sys.exit(1)
