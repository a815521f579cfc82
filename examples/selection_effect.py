"""The selection effect: with a probe at chance, Q-Anchored is still far below A-Anchored.

The labels of the training answers are shuffled, so the probe at each layer is at chance. The rest
is the usual protocol: attention from the exact question tokens is cut, rows are split by whether
this probe's prediction flips, and ΔP is drawn for both groups.

    python examples/selection_effect.py --out runs/selection.html     # or .png
"""

import argparse
from pathlib import Path

import anchorlens as al


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="triviaqa-sample")
    parser.add_argument("--data-file", default=None, help="a local file with the data set's schema")
    parser.add_argument("--limit", type=int, default=None)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("runs/selection.html"),
        help="file: .html, .png, .svg or .pdf",
    )
    args = parser.parse_args()

    data = al.load_qa(args.dataset, path=args.data_file, limit=args.limit)
    ko = al.knockout_sweep(al.load_model(args.model), data)
    every = ko.curves(controls=True)
    chance = every[every["control"] == "shuffled_labels"].assign(control="none")
    real = ko.curves()
    for name, curves in (("probe of the true labels", real), ("probe of shuffled labels", chance)):
        at = curves[curves["layer"] == ko.probe_layer].set_index("pathway")
        row = at.loc["All"]
        print(
            f"{name}: AUC {row['auc']:.2f} [{row['auc_low']:.2f}, {row['auc_high']:.2f}] at layer"
            f" {ko.probe_layer}"
        )
        for pathway in ("Q-Anchored", "A-Anchored", "All"):
            group = at.loc[pathway]
            print(
                f"  {pathway:10} {group['effect']:+6.1f} [{group['ci_low']:+.1f},"
                f" {group['ci_high']:+.1f}]  n = {group['n']}"
            )
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figure = al.plot_curves(chance, title="ΔP by layer, split by a probe with shuffled labels")
    al.save_figure(figure, args.out, width=1000, scale=2)  # pixels
    print(f"figure  {args.out}")


if __name__ == "__main__":
    main()
