"""Where attribution patching fails on SmolLM2: estimates beside exact patches, by site and depth.

    python benchmarks/attribution_patching.py --pairs ioi-pairs --limit 4

Residual streams, attention and MLP outputs are patched at each position, heads at all positions. A
table shows how well the estimates rank the cells of all layers (of the exact top 20) and of each
third of the layers (top 10): see al.compare_methods. Exact effects and estimates have the same
dtype.
"""

import argparse
import time

import pandas as pd
import torch

import anchorlens as al

BY = {
    **dict.fromkeys(("resid_pre", "resid_mid", "attn_out", "mlp_out"), "position"),
    **dict.fromkeys(("z", "q", "k", "v", "pattern"), "head"),
}
PARTS = {"all": None, "early": range(10), "middle": range(10, 20), "late": range(20, 30)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--pairs", default="ioi-pairs", help="name or file of pairs")
    parser.add_argument("--limit", type=int, default=4)
    parser.add_argument("--dtypes", default="float32,bfloat16")
    parser.add_argument("--sites", default=",".join(BY))
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    pairs = al.load_pairs(given.pairs, limit=given.limit)
    rows: list[pd.DataFrame] = []
    seconds = dict.fromkeys(("exact", "attribution"), 0.0)
    for dtype in given.dtypes.split(","):
        model = al.load_model("smollm2-135m-instruct", dtype=dtype, progress=False)
        for site in given.sites.split(","):
            found: dict[str, al.PatchResult] = {}
            for method in seconds:
                started = time.process_time()
                found[method] = al.patch_sweep(
                    model,
                    pairs,
                    site=site,
                    by=BY[site],
                    method=method,
                    controls="none",
                    n_spot_checks=0,
                    progress=False,
                )
                seconds[method] += time.process_time() - started
            for part, layers in PARTS.items():
                row = al.compare_methods(
                    found["exact"],
                    found["attribution"],
                    top=20 if layers is None else 10,
                    layers=layers,
                )
                rows.append(row.assign(dtype=dtype, site=site, layers=part))
                # A line at once: the whole takes minutes.
                print(dtype, site, part, *row.iloc[0].iloc[1:].round(2), flush=True)
    table = pd.concat(rows).drop(columns="method").set_index(["dtype", "site", "layers"])
    print()
    print(table.round(2).to_string())
    for method, spent in seconds.items():
        print(f"{method}: {spent:.0f} CPU s")


if __name__ == "__main__":
    main()
