"""The knockout protocol: attention from the exact question tokens is cut, and a truth probe is read (METHOD 5).

Method: for the probe at layer k all edges from E_Q to later tokens are cut in every layer <= k; ΔP is taken on the confidence in the
clean prediction, in percentage points. Rows whose prediction flips are Q-Anchored, the others A-Anchored. Because the split uses the
plotted quantity, every curve comes with its placebos (:mod:`anchorlens.analysis.pathways`).

Scope: one model, one data set, one set of edges in each call. Not done here: token patching, saliency, detection.
"""

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt
import pandas as pd
from jaxtyping import Float
from torch import Tensor
from tqdm.auto import tqdm
from transformer_lens import HookedTransformer

from anchorlens.analysis.checks import check_count, cut_checks, cut_noise, noise_record
from anchorlens.analysis.cuts import RANDOM, CutPlan, CutRun
from anchorlens.analysis.knockout_plan import plan_knockout
from anchorlens.analysis.pathways import DELTA_KINDS, SPLIT_RULES, Measured
from anchorlens.analysis.probes import PROBE_SITES, LayerProbes, fit_layers
from anchorlens.analysis.rows import check_not_empty, drop, tick
from anchorlens.analysis.truth import TruthRows, check_answers, half_splits, shuffled_labels, text_only, truth_rows
from anchorlens.engine.knockout import LATER, MODES, check_heads, parse_edges
from anchorlens.engine.plan import RunOptions, SweepPlan, parse_memory
from anchorlens.engine.select import Engine, check_engine, choose_engine
from anchorlens.errors import InputError, did_you_mean
from anchorlens.models.adapter import Adapter
from anchorlens.models.card import card_of
from anchorlens.questions.datasets import DatasetLike, FrameLike, QAData, load_qa
from anchorlens.questions.example import Dropped
from anchorlens.questions.given import FRACTIONS
from anchorlens.questions.prompts import FewShotPrompt, PromptLike, make_prompt
from anchorlens.questions.tokens import RowTokenizer, TokenRow
from anchorlens.results.knockout import KnockoutResult, knockout_samples
from anchorlens.results.provenance import data_record, environment, model_record, no_nan, run_id_of
from anchorlens.results.sweep import examples_frame

READOUTS = ("probe", "p_true")


@dataclass(frozen=True)
class KnockoutConfig:
    """Everything that decides a knockout sweep's numbers, as names and numbers; written into run.json."""

    protocol: str
    anchors: tuple[str, ...]
    edges: str
    mode: str
    heads: tuple[int, ...] | None
    window: int
    cut_layers: tuple[int, int]
    layers: tuple[int, ...]
    readout: str
    site: str
    delta_kind: str
    answers: str
    distractor: str
    split: str
    placebos: bool
    fractions: tuple[float, float, float]
    prompt: str
    add_bos: bool
    max_new_tokens: int
    n_resamples: int
    seed: int
    probes: str = ""


def knockout_sweep(
    model: HookedTransformer,
    data: "QAData | str | FrameLike | DatasetLike",
    *,
    edges: str = "question -> later",
    mode: str = "mask",
    heads: Sequence[int] | None = None,
    window: int | None = None,
    cut_layers: tuple[int, int] | None = None,
    layers: Sequence[int] | None = None,
    readout: str = "probe",
    site: str = "resid_post",
    probes: LayerProbes | None = None,
    delta_kind: str = "confidence",
    answers: str = "given",
    distractor: str = "matched",
    split: str = "fixed",
    placebos: bool = True,
    fractions: tuple[float, float, float] = FRACTIONS,
    prompt: PromptLike = "qa",
    add_bos: bool | None = None,
    max_new_tokens: int = 16,
    n_resamples: int = 1000,
    batch_size: int | None = None,
    engine: str = "cone",
    max_memory: int | str | None = None,
    check_cells: int = 4,
    on_plan: Callable[[SweepPlan], None] | None = None,
    seed: int = 0,
    progress: bool = True,
) -> KnockoutResult:
    """ΔP at every layer when attention from the question's exact tokens is cut, by pathway, with placebos.

    Args:
        model: From :func:`anchorlens.load_model`, or any HookedTransformer with a fast tokenizer.
        data: From :func:`anchorlens.load_qa`, or what it takes as its first argument.
        edges: ``"source -> target"``: an anchor, and an anchor or ``later`` (all later tokens outside the source).
        mode: ``mask``: scores are minus infinity before the softmax; ``zero``: weights are 0 after it. Different interventions.
        heads: Query heads in which the edges are cut; all where it is left out.
        window: None: the cumulative curve of the paper (cut in all layers up to the one that is read, one pass for all layers).
            A number: cut in that many layers around each, and read at k* (``probe``) or at the end (``p_true``).
        cut_layers: First and last layer in which edges may be cut at all; all layers where it is left out.
        layers: Layers of the curve; all where it is left out.
        readout: ``probe``: P(hallucination) of a truth probe at the last exact answer token; ``p_true``: P(yes) where the model is
            asked whether the answer is right.
        site: Where the probe reads: ``resid_post``, ``mlp_out`` or ``attn_out``.
        probes: Fitted probes; they refuse questions that they have seen. Where they are left out, probes are trained on the
            training split.
        delta_kind: ``confidence`` (in the clean prediction), ``signed``, or ``true_label``.
        answers: ``given``: gold answers against others' gold answers; ``generated``: the model's own.
        distractor: ``matched`` or ``random``, see :func:`~anchorlens.questions.given.given_answers`.
        split: ``fixed``: rows that flip at k* are Q-Anchored at all layers; ``per_layer``: at each layer those that flip there.
        placebos: Measure the placebo splits too.
        fractions: Shares of training, validation and test questions.
        prompt: ``qa``, ``fewshot(k, seed)``, ``chat``, or a :class:`~anchorlens.questions.prompts.Prompt`.
        add_bos: None: BOS as the Hugging Face tokenizer adds it to text.
        max_new_tokens: Longest generated answer.
        n_resamples: Bootstrap resamples of all intervals.
        batch_size: Rows in one pass; chosen for the memory at hand where it is left out.
        engine: ``cone``, or ``reference`` for the oracle, as in :func:`anchorlens.swap_sweep`.
        max_memory: Most memory beside the model, in bytes or as ``"2GB"``; half of what is free where it is left out.
        check_cells: At so many random rows and layers the oracle measures again (not where it measured all of them itself).
        on_plan: Called with the :class:`~anchorlens.engine.plan.SweepPlan` (batches, predicted FLOPs, seconds and memory) before
            anything is measured; what it raises stops the sweep.
        seed: Decides splits, false answers, placebo positions, shuffles and resamples. No global state is touched.
        progress: Show a progress bar with the time left.

    Returns:
        A :class:`~anchorlens.results.knockout.KnockoutResult`.

    Raises:
        InputError: An argument is not one of those above.
        EmptySweepError: No row is left, or a split lacks true or false answers.
        LeakError: ``probes`` have seen questions of the test split.
        CheckError: A cell that was measured again by the oracle came out differently.

    Source:
        Luo et al. 2026 (pathways), Geva et al. 2023 (attention knockout); the placebos are ours.
    """
    adapter = Adapter(model)
    check_engine(engine)
    memory = parse_memory(max_memory)
    check_count(check_cells)
    qa = data if isinstance(data, QAData) else load_qa(data, seed=seed)
    config = _check(
        adapter, edges=edges, mode=mode, heads=heads, window=window, cut_layers=cut_layers, layers=layers, readout=readout,
        site=site, delta_kind=delta_kind, answers=answers, distractor=distractor, split=split, placebos=placebos,
        fractions=fractions, max_new_tokens=max_new_tokens, n_resamples=n_resamples, seed=seed, probes=probes,
    )  # fmt: skip
    if adapter.model.tokenizer is None:
        raise InputError(
            "This HookedTransformer has no tokenizer. Set model.tokenizer, or load it with anchorlens.load_model."
        )
    made = make_prompt(prompt, qa.examples, qa.pool, seed)
    tokenizer = RowTokenizer(
        adapter.model.tokenizer, made, add_bos=add_bos, max_length=adapter.model.cfg.n_ctx, ask=readout == "p_true"
    )
    config = replace(config, prompt=made.name, add_bos=tokenizer.add_bos)
    shots = made.shot_ids if isinstance(made, FewShotPrompt) else frozenset()
    examples = [e for e in qa.examples if e.question_id not in shots]
    shot_drops = [drop(e, "used_as_shot") for e in qa.examples if e.question_id in shots]
    rows = truth_rows(
        adapter, examples, tokenizer, answers=answers, distractor=distractor, fractions=fractions,
        max_new_tokens=max_new_tokens, batch_size=batch_size, seed=seed, progress=progress,
    )  # fmt: skip
    dropped = (*qa.dropped, *shot_drops, *rows.dropped)
    check_not_empty(rows.rows, dropped, f"in {qa.name}")
    rows.check()
    chosen = choose_engine(adapter, engine, rows.rows[0].ids, [config.site] if config.site else [])
    options = RunOptions(engine, batch_size, memory, check_cells, on_plan, progress)
    return _run(chosen, qa, config, rows, dropped, probes=probes, options=options)


def _check(
    adapter: Adapter, *, edges: str, mode: str, heads: Sequence[int] | None, window: int | None,
    cut_layers: tuple[int, int] | None, layers: Sequence[int] | None, readout: str, site: str, delta_kind: str, answers: str,
    distractor: str, split: str, placebos: bool, fractions: tuple[float, float, float], max_new_tokens: int, n_resamples: int,
    seed: int, probes: LayerProbes | None,
) -> KnockoutConfig:  # fmt: skip
    """Names and ranges of all arguments; what depends on the data comes later."""
    for value, known, what in (
        (mode, MODES, "mode"), (readout, READOUTS, "readout"), (site, PROBE_SITES, "site"), (delta_kind, DELTA_KINDS, "delta_kind"),
        (split, SPLIT_RULES, "split"),
    ):  # fmt: skip
        if value not in known:
            raise InputError(f"Unknown {what}={value!r}. {did_you_mean(value, known)}")
    check_answers(answers, distractor)
    source, target = parse_edges(edges)
    for name, value, least in (
        ("window", 1 if window is None else window, 1), ("max_new_tokens", max_new_tokens, 1), ("n_resamples", n_resamples, 1),
        ("seed", seed, 0),
    ):  # fmt: skip
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}.")
    n_layers = adapter.n_layers
    chosen = tuple(range(n_layers)) if layers is None else tuple(sorted(int(layer) for layer in layers))
    if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= layer < n_layers for layer in chosen):
        raise InputError(f"layers must be different numbers from 0 to {n_layers - 1}, got {chosen}.")
    first, last = (0, n_layers - 1) if cut_layers is None else cut_layers
    if not 0 <= first <= last < n_layers:
        raise InputError(f"cut_layers must be first and last layer, from 0 to {n_layers - 1}; got {cut_layers}.")
    if probes is not None and (readout != "probe" or probes.site != site or not set(chosen) <= set(probes.layers)):
        raise InputError(
            f"These probes read {probes.site} at layers {probes.layers}; asked for is readout={readout!r}, site={site!r}, "
            f"layers {chosen}. Give layers= and site= that the probes have."
        )
    n_heads = int(adapter.model.cfg.n_heads)
    cut_heads = None if heads is None else tuple(int(head) for head in heads)
    if cut_heads is not None:
        check_heads(cut_heads, n_heads)
    adapter.hook_name(site, chosen[0])
    anchor = source if target == LATER else f"{source} -> {target}"
    return KnockoutConfig(
        "knockout", (anchor,), f"{source} -> {target}", mode, cut_heads, window or 0, (first, last), chosen, readout,
        "" if readout == "p_true" else site, delta_kind, answers, distractor, split, placebos, fractions, "", False,
        max_new_tokens, n_resamples, seed, "" if probes is None else probes.fingerprint,
    )  # fmt: skip


def _run(
    engine: Engine, data: QAData, config: KnockoutConfig, rows: TruthRows, dropped: tuple[Dropped, ...], *,
    probes: LayerProbes | None, options: RunOptions,
) -> KnockoutResult:  # fmt: skip
    adapter = engine.adapter
    card = card_of(adapter.model)
    plan, cost = plan_knockout(engine, rows, config, batch_size=options.batch_size, max_memory=options.max_memory)
    without = sum(not cut.sources for cut in plan.cuts)
    if without == len(plan.cuts):
        raise InputError(
            f"edges={config.edges!r} cut nothing in any row: no target stands after the source and before the end of the input. "
            "Name a source that comes before its target, for example 'question -> later'."
        )
    if options.on_plan is not None:
        options.on_plan(cost)
    total = plan.forward_rows(config)
    sets: dict[str, LayerProbes] = {}
    label = f"knockout {card.name} {data.name}"
    with tqdm(total=total, desc=label, unit="row", unit_scale=True, disable=not options.progress, dynamic_ncols=True) as bar:
        run = CutRun(engine, plan, config, on_rows=partial(tick, bar))
        if config.readout == "probe":
            states = run.clean_states()
            bar.set_postfix_str("fitting probes")
            sets = _probe_sets(config, rows, states, card.name, data.name, probes)
            bar.set_postfix_str("")
            measured = run.with_probes(sets, states)
        else:
            measured = run.with_truth_question()

        def again(part: CutRun) -> list[Measured]:
            if config.readout != "probe":
                return part.with_truth_question()
            own = {name: probes.at(part.config.layers) for name, probes in sets.items()}
            return part.with_probes(own, part.clean_states())

        bar.set_postfix_str("noise floor")
        noise = cut_noise(run, measured, again)
        bar.set_postfix_str("checks")
        checks = cut_checks(run, measured, again, options.check_cells, float(str(noise["floor"])))
        bar.set_postfix_str("")
    if all(np.isnan(one.after).all() for one in measured):
        raise InputError(
            f"No layer of {config.layers} can be changed by cuts in layers {config.cut_layers} with window {config.window or None}"
            + (f" and a probe at layer {sets['none'].best_layer}." if sets else ".")
        )
    used = sets.get("none")
    record = {
        "config": asdict(config),
        "model": model_record(card),
        "data": data_record(data),
        "environment": environment(adapter.device),
        "plan": {**cost.to_dict(), "forward_rows": total, "split": run.splits},
        "noise": noise_record(noise, checks),
        "checks": checks,
        "counts": {
            "evaluated": len(plan.test) - without,
            "rows": rows.sizes,
            "dropped": dict(Counter(d.reason for d in dropped).most_common()),
            "without_edge": without,
            "without_placebo": sum(RANDOM not in cut.sources for cut in plan.cuts) - without if config.placebos else 0,
        },
        "probe": {
            "k_star": None if used is None else used.best_layer,
            "validation_auc": {} if used is None else no_nan({str(k): used.probes[k].validation_auc_ for k in used.layers}),
            "text_only": text_only(rows, n_resamples=config.n_resamples, seed=config.seed),
        },
    }
    run_id = run_id_of(asdict(config), model_record(card), data_record(data))
    samples = knockout_samples(
        {**_keys(config), "model": card.name, "dataset": data.name, "run_id": run_id}, config.layers,
        [rows.rows[i] for i in plan.test], measured, event_is_true=config.readout == "p_true",
    )  # fmt: skip
    examples = _examples(plan, config, run_id, data.name, dropped)
    placebos = {name: probes for name, probes in sets.items() if name != "none"}
    return KnockoutResult.make(samples, examples, record, run_id).with_probes(used, placebos)


def _keys(config: KnockoutConfig) -> dict[str, object]:
    heads = "" if config.heads is None else f", heads {','.join(map(str, config.heads))}"
    return {
        "protocol": "knockout", "anchor": config.anchors[0], "site": config.site, "window": config.window, "direction": "noising",
        "mode": config.mode + heads, "readout": config.readout, "delta_kind": config.delta_kind, "seed": config.seed,
    }  # fmt: skip


def _probe_sets(
    config: KnockoutConfig, rows: TruthRows, states: Float[Tensor, "layer example d_model"], model: str, dataset: str,
    probes: LayerProbes | None,
) -> dict[str, LayerProbes]:  # fmt: skip
    """The probes that are read, and those of the placebos."""

    def fitted(labels: npt.ArrayLike, split: Sequence[str], like: LayerProbes | None) -> LayerProbes:
        return fit_layers(
            config.layers, states, labels, rows.question_ids, split, site=config.site, model=model, dataset=dataset, like=like
        )

    read = probes.at(config.layers) if probes is not None else fitted(rows.labels, rows.split, None)
    sets = {"none": read}
    if config.placebos:
        sets["shuffled_labels"] = fitted(shuffled_labels(rows, config.seed), rows.split, read)
        folds = half_splits(rows, config.seed)
        if all(len({y for y, part in zip(rows.labels, fold, strict=True) if part == "train"}) == 2 for fold in folds):
            sets |= {name: fitted(rows.labels, fold, read) for name, fold in zip(("fold_a", "fold_b"), folds, strict=True)}
        else:
            warnings.warn(
                "cross_fold is left out: one half of the training questions has answers of one label only. Take more questions.",
                stacklevel=4,
            )
    return sets


def _examples(plan: CutPlan, config: KnockoutConfig, run_id: str, dataset: str, dropped: Sequence[Dropped]) -> pd.DataFrame:
    """Test rows as ``base``, the rows that probes were fitted on as ``train`` and ``validation``, and dropped ones."""
    rows = plan.rows
    cuts = {rows.rows[i].row_id: cut for i, cut in zip(plan.test, plan.cuts, strict=True)}
    extra = {row_id: {f"cut:{variant}": list(where) for variant, where in cut.sources.items()} for row_id, cut in cuts.items()}
    tested = set(plan.test)
    uncut = [row_id for row_id, cut in cuts.items() if not cut.sources]
    dropped = [*dropped, *(_no_edge(rows.rows[i]) for i in plan.test if rows.rows[i].row_id in uncut)]
    inputs = {"base": [rows.rows[i] for i in plan.test if rows.rows[i].row_id not in uncut]} | {
        name: [rows.rows[i] for i in rows.of(name) if i not in tested] for name in ("train", "validation")
    }
    return examples_frame(run_id, dataset, config.prompt, inputs=inputs, dropped=dropped, donor_ids={}, positions=extra)


def _no_edge(row: TokenRow) -> Dropped:
    """The record of a row in which the edges cut nothing."""
    return replace(drop(row.example, "no_edge", "no target after the source"), example_id=row.row_id)


__all__ = ["KnockoutConfig", "knockout_sweep"]
