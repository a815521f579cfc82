"""``anchorlens circuit RUN``: select a circuit from an edge sweep, and score it."""

import json

import click

from anchorlens.cli.output import echo, echo_json, records
from anchorlens.errors import InputError

_EPILOG = """\b
Examples:
  anchorlens circuit runs/edges --top 100
  anchorlens circuit runs/edges --rule greedy --out ioi_gpt2/importances.json
  anchorlens circuit runs/edges --pairs other-pairs.csv --out circuit.json
  anchorlens circuit runs/edges --pairs other-pairs.csv --sizes 50,200,1000 --json
"""


def _numbers(
    context: click.Context,  # noqa: ARG001
    parameter: click.Parameter,  # noqa: ARG001
    given: str | None,
) -> list[float | int] | None:
    """Return sizes: whole numbers of edges, or shares with a point."""
    if given is None:
        return None
    try:
        return [float(one) if "." in one else int(one) for one in given.split(",")]
    except ValueError:
        raise click.BadParameter(
            f"{given!r}: write numbers of edges or shares, such as 50,200 or 0.01,0.1."
        ) from None


@click.command(
    "circuit",
    epilog=_EPILOG,
    short_help="Select a circuit from an edge sweep, and score it on other pairs",
)
@click.argument("run", metavar="RUN")
@click.option(
    "--top", type=click.IntRange(1), default=200, show_default=True, help="Number of edges."
)
@click.option(
    "--rule",
    default="top",
    show_default=True,
    metavar="KIND",
    help="top (the largest effects), greedy (from the logits down, as EAP-IG) or consensus (those"
    " that most resamples select).",
)
@click.option("--signed", is_flag=True, help="Rank by the effect, not by its size.")
@click.option(
    "--pairs",
    default=None,
    metavar="FILE|NAME",
    help="Pairs to score the circuit on; others than those of the run.",
)
@click.option(
    "--limit", type=click.IntRange(1), default=None, metavar="N", help="Number of pairs to score."
)
@click.option(
    "--model", default=None, metavar="NAME|PATH", help="The model.  [default: that of the run]"
)
@click.option(
    "--sizes",
    callback=_numbers,
    default=None,
    metavar="N,N",
    help="Numbers of edges, or shares such as 0.01, to score.  [default: 0.1 to 100 %]",
)
@click.option(
    "--ablation",
    default="patching",
    show_default=True,
    metavar="KIND",
    help="patching (contributions of the corrupted prompt) or mean (their mean over prompts).",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="Random seed of the resamples."
)
@click.option(
    "--out",
    "-o",
    default=None,
    metavar="FILE.json",
    help="Circuit to write, as EAP-IG and the MIB benchmark read it; an existing file is replaced.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for scripts.")
def circuit_command(
    run: str,
    top: int,
    rule: str,
    *,
    signed: bool,
    pairs: str | None,
    limit: int | None,
    model: str | None,
    sizes: list[float | int] | None,
    ablation: str,
    seed: int,
    out: str | None,
    as_json: bool,
) -> None:
    """Select the edges with the largest effects of an edge sweep as a circuit.

    It prints how stable the selection is over resamples of whole clusters of pairs. With --pairs it
    runs circuits of several sizes and prints what share of the metric they keep (faithfulness), and
    what all other edges keep without them.
    """
    from anchorlens.loading.load_run import load_run
    from anchorlens.prompts.load_pairs import load_pairs
    from anchorlens.protocols.edges.circuit_files import save_circuit
    from anchorlens.protocols.edges.edge_result import EdgeResult

    found = load_run(run)
    if len(found) != 1 or not isinstance(found[0], EdgeResult):
        raise InputError(f"RUN={run!r}: has no edge sweep of its own. Measure anchorlens edges.")
    if pairs is None and (sizes or limit or model):
        raise InputError("--sizes, --limit and --model are for scoring. Give --pairs too.")
    circuit = found[0].circuit(top, rule=rule, absolute=not signed, seed=seed)
    scores = None
    if pairs is not None:
        scores = circuit.faithfulness(
            model or circuit.model,
            load_pairs(pairs, limit=limit),
            sizes=sizes,
            ablation=ablation,
            seed=seed,
        )
    if out is not None:
        save_circuit(circuit, out)
    if as_json:
        told: dict[str, object] = {"circuit": out, "edges": records(circuit.table())}
        if scores is not None:
            told["faithfulness"] = records(scores.table())
            for name in ("cpr", "cmd"):
                area = getattr(scores, name)
                told[name] = None if area is None else vars(area)
        echo_json(json.dumps(told))
        return
    echo(str(circuit))
    if scores is not None:
        echo(f"\n{scores}")
    if out is not None:
        echo(f"circuit  {out}")
