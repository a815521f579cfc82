"""Compare the numbers of this tree with those of another commit, cell by cell.

    python benchmarks/unchanged.py --against 030ce2e --data DIR

Checks out that commit and measures the same rows with the same seed with both trees: all question
protocols on embedded sets and real rows, patch sweeps by position, head, segment and layer, and
grids of the drop-in, with SmolLM2. Compares every effect and prints the number of values that are
equal to the bit. Exit code 1 if two differ by more than 1e-4 of their unit (another batch changes
the last digits). `--only patch` measures the patch sweeps and grids alone.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SETS = ("popqa", "triviaqa", "hotpotqa", "nq")
PROTOCOLS = ("swap", "knockout", "patch_tokens", "answer_only")
LIMIT = 1e-4
ANCHORS = {
    "question": "exact_question",
    "answer_site": "pre_answer",
    "answer_site_all": "pre_answer_all",
}  # old -> new
KEYS = ["example_id", "anchor", "layer", "donor_id", "control", "draw"]
# Name of a patch sweep -> its arguments; each on the first pairs of an embedded set.
PATCHES: dict[str, dict[str, object]] = {
    "position": {},
    "head": {"by": "head", "site": "z", "layers": (0, 10, 20)},
    "key_head": {"by": "head", "site": "k", "layers": (5,), "metric": "prob"},
    "segment": {"by": "segment", "site": "mlp_out", "window": 3, "metric": "kl"},
    "layer": {"by": "layer", "site": "attn_out", "metric": "prob", "direction": "noising"},
}
# Function of the drop-in -> layers are all, and axes as the function has them.
GRIDS = ("resid_pre", "mlp_out", "attn_head_out_all_pos", "attn_head_k_all_pos")


def jobs(data: Path | None) -> list[tuple[str, str, Path | None]]:
    """Return protocol, data set and file of each measurement."""
    sets: list[tuple[str, Path | None]] = [(f"{name}-sample", None) for name in SETS]
    if data is not None:
        sets += [(name, data / f"{name}.jsonl") for name in SETS]
    return [(protocol, name, path) for name, path in sets for protocol in PROTOCOLS]


def measure(out: Path, data: Path | None, limit: int) -> None:
    """Write one parquet file of samples per job, with the package that Python finds first."""
    import anchorlens as al

    model = al.load_model("smollm2-135m-instruct", device="cpu")
    out.mkdir(parents=True, exist_ok=True)
    for protocol, name, path in jobs(data):
        qa = al.load_qa(name, path=path, limit=limit, seed=0)
        own = {"n_donors": 1, "donors": "random"} if protocol == "swap" else {}
        # A fixed limit, so that both trees plan the same batches.
        sweep_function = getattr(al, f"{protocol}_sweep")
        try:
            sweep = sweep_function(model, qa, seed=0, progress=False, max_memory="2GB", **own)
        except al.EmptySweepError as error:
            print(f"{protocol} {name}: no rows ({error})", flush=True)
            continue
        sweep.samples().to_parquet(out / f"{protocol}-{name}.parquet", index=False)
        print(f"{protocol} {name}: {len(sweep.samples())} cells", flush=True)


def measure_patches(out: Path, n_pairs: int = 8) -> None:
    """Write one parquet file per patch sweep and per grid of the drop-in."""
    import pandas as pd

    import anchorlens as al
    from anchorlens import patching

    model = al.load_model("smollm2-135m-instruct", device="cpu")
    out.mkdir(parents=True, exist_ok=True)
    for name, arguments in PATCHES.items():
        pairs = al.load_pairs("ioi-pairs", limit=n_pairs)
        sweep = al.patch_sweep(model, pairs, seed=0, progress=False, max_memory="2GB", **arguments)
        sweep.samples().to_parquet(out / f"patch-{name}.parquet", index=False)
        print(f"patch {name}: {len(sweep.samples())} cells", flush=True)
    clean = model.to_tokens("When Mary and John went to the shop, John gave a drink to")
    corrupted = model.to_tokens("When Mary and John went to the shop, Mary gave a drink to")
    right, wrong = (model.to_single_token(name) for name in (" Mary", " John"))
    _, cache = model.run_with_cache(clean)
    metrics = {
        "difference": lambda logits: logits[0, -1, right] - logits[0, -1, wrong],
        "accuracy": lambda logits: (logits[:, -1].argmax(-1) == right).float().mean(),
    }
    for name in GRIDS:
        function = getattr(patching, f"get_act_patch_{name}")
        for metric_name, metric in metrics.items():
            values = function(model, corrupted, cache, metric).flatten().tolist()
            frame = pd.DataFrame({"layer": range(len(values)), "effect": values})
            same = {"example_id": "", "anchor": name, "donor_id": "", "control": "none"}
            frame = frame.assign(**same, metric=metric_name, pathway=None)
            frame.to_parquet(out / f"grid-{name}-{metric_name}.parquet", index=False)
            print(f"grid {name} {metric_name}: {len(frame)} cells", flush=True)


def of_commit(
    revision: str, out: Path, data: Path | None, limit: int, only: str | None = None
) -> None:
    """Measure with another commit, in this environment and with this script."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--force", str(tree), revision],
            check=True,
            capture_output=True,
        )
        try:
            command = [sys.executable, __file__, "--out", str(out), "--limit", str(limit)]
            command += ["--data", str(data.resolve())] if data else []
            command += ["--only", only] if only else []
            subprocess.run(
                command, check=True, env={**os.environ, "PYTHONPATH": str(tree)}, cwd=folder
            )
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)], check=True, capture_output=True
            )


def compare(ours: Path, theirs: Path) -> bool:
    """Print the largest difference of each job; return whether all are within the limit."""
    import pandas as pd

    good = True
    print(f"\n{'':30} {'cells':>7} {'equal to the bit':>17} {'largest |difference| of ΔP':>28}")
    for file in sorted(theirs.glob("*.parquet")):
        one, two = (table(pd.read_parquet(folder / file.name)) for folder in (ours, theirs))
        both = one.merge(two, on=KEYS, suffixes=("", "_other"), how="outer", indicator=True)
        alone = int((both["_merge"] != "both").sum())
        gap = (both["delta"] - both["delta_other"]).abs()
        same_split = (both["pathway"] == both["pathway_other"]).all()
        good &= not alone and bool(gap.max() <= LIMIT) and bool(same_split)
        note = (
            f"; {alone} cells on one side only"
            if alone
            else ""
            if same_split
            else "; pathways differ"
        )
        print(f"{file.stem:30} {len(both):7} {int((gap == 0).sum()):17} {gap.max():28.2g}{note}")
    return good


def table(samples: "pd.DataFrame") -> "pd.DataFrame":
    """Return keys, pathway and ΔP of any schema since 030ce2e, with the current names."""
    import pandas as pd

    samples = samples.rename(columns={"delta_p": "delta", "effect": "delta", "quantity": "metric"})
    if (samples["metric"] == "p").any():
        samples = samples[samples["metric"] == "p"]
    samples = samples.assign(pathway=samples.get("pathway"))  # left out where no row has one
    # Older commits have one draw of each control.
    samples = samples.assign(draw=samples.get("draw", pd.Series(0, samples.index)).fillna(0))
    named = ["example_id", "anchor", "donor_id", "control", "pathway"]
    samples = samples.assign(**{name: samples[name].fillna("") for name in named})
    return samples.replace({"anchor": ANCHORS, "control": {"matched": "size_matched"}})[
        [*KEYS, "pathway", "delta"]
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--against", help="the commit to compare with, or a folder that --out wrote"
    )
    parser.add_argument(
        "--data",
        type=Path,
        default=None,
        help="folder with popqa.jsonl, triviaqa.jsonl, hotpotqa.jsonl, nq.jsonl",
    )
    parser.add_argument("--limit", type=int, default=64, help="questions per set")
    parser.add_argument("--only", choices=("questions", "patch"), help="part to measure")
    parser.add_argument("--out", type=Path, default=None, help="folder to keep the samples in")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ours = args.out or Path(folder) / "ours"
        theirs = Path(folder) / "theirs"
        if args.against and Path(args.against).is_dir():
            theirs = Path(args.against)
        elif args.against:
            of_commit(args.against, theirs, args.data, args.limit, args.only)
        if args.only != "patch":
            measure(ours, args.data, args.limit)
        if args.only != "questions":
            measure_patches(ours)
        if args.against:
            sys.exit(0 if compare(ours, theirs) else 1)


if __name__ == "__main__":
    main()
