"""The swap protocol: activation patching of residual streams, layer by layer (METHOD 4).

Method: at one layer, the stream at an anchor's positions is replaced by that of a donor run; the model goes on; P of the base's
answer is read. ΔP = 100 * (P after - P before), in percentage points; negative where the change took support away (noising), or
positive where it gave support back (denoising). Beside every curve stands a null: the donor's streams at random other positions.

Scope: one model, one data set, one site, one readout in each call. Truth readouts: :mod:`anchorlens.analysis.readings`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
import pandas as pd
from tqdm.auto import tqdm
from transformer_lens import HookedTransformer

from anchorlens.analysis.pairs import Pair, PairMaker, Pairs, build_batch, make_batches
from anchorlens.analysis.probes import LayerProbes
from anchorlens.analysis.readings import (
    TRUTH_READOUTS,
    Reading,
    answer_reading,
    probe_reading,
    truth_question_reading,
)
from anchorlens.analysis.rows import Rows, check_not_empty, drop, known_rows, make_rows, tick
from anchorlens.analysis.stream_statistics import StreamStatistics
from anchorlens.analysis.swap_config import SwapConfig, check_no_truth, check_swap, check_truth
from anchorlens.analysis.truth import TruthRows, text_only, truth_rows
from anchorlens.engine.plan import rows_per_batch
from anchorlens.engine.readouts import Metrics, ReadoutLike
from anchorlens.engine.reference import run_swaps
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.models.card import card_of
from anchorlens.questions.datasets import DatasetLike, FrameLike, QAData, load_qa
from anchorlens.questions.donors import STATISTIC_RULES, DonorLike, DonorPicker
from anchorlens.questions.example import Dropped, Example
from anchorlens.questions.given import FRACTIONS
from anchorlens.questions.prompts import FewShotPrompt, PromptLike, make_prompt
from anchorlens.questions.tokens import RowTokenizer, TokenRow
from anchorlens.results.provenance import data_record, environment, model_record, no_nan, run_id_of
from anchorlens.results.sweep import SweepResult, examples_frame, samples_frame


@dataclass(frozen=True)
class _Plan:
    """A sweep that is ready to run."""

    config: SwapConfig
    data: QAData
    rows: Rows
    pairs: Pairs
    dropped: tuple[Dropped, ...]
    statistics: StreamStatistics | None
    reading: Reading


def swap_sweep(
    model: HookedTransformer,
    data: "QAData | str | FrameLike | DatasetLike",
    *,
    anchors: Sequence[str] = ("question", "answer_site"),
    readout: ReadoutLike = "first_token",
    site: SiteLike = "resid_pre",
    window: int = 1,
    direction: str = "noising",
    donors: DonorLike = "same_relation",
    n_donors: int = 4,
    align: str = "equal",
    layers: Sequence[int] | None = None,
    known_only: bool = False,
    prompt: PromptLike = "qa",
    add_bos: bool | None = None,
    null_donors: int = 1,
    answers: str = "given",
    distractor: str = "matched",
    delta_kind: str = "confidence",
    probes: LayerProbes | None = None,
    probe_site: str = "resid_post",
    fractions: tuple[float, float, float] = FRACTIONS,
    max_new_tokens: int = 16,
    n_resamples: int = 1000,
    batch_size: int | None = None,
    seed: int = 0,
    progress: bool = True,
) -> SweepResult:
    """ΔP at every layer when an anchor's activations are swapped with a donor's.

    Args:
        model: From :func:`anchorlens.load_model`, or any HookedTransformer with a fast tokenizer.
        data: From :func:`anchorlens.load_qa`, or what it takes as its first argument.
        anchors: Roles whose positions are changed, each on its own: ``question``, ``subject``, ``property``, ``subject_last``,
            ``question_rest``, ``prompt_last``, ``answer_site``, ``answer_site_all``; for truth readouts also ``answer``.
        readout: ``first_token``, ``answer_mean``, ``answer_joint``, or a :class:`~anchorlens.engine.readouts.Readout`; or a truth
            readout: ``probe`` (P(hallucination) at k*, the layer with the best validation AUC; test rows are measured) or
            ``p_true`` (P(yes) where the model is asked whether the answer is right; all rows are measured).
        site: ``resid_pre``, ``resid_mid``, ``resid_post``, ``attn_out``, ``mlp_out``, or a function layer -> hook name.
        window: Layers that are replaced together, centred at the layer that is reported and clipped to the model.
        direction: ``noising`` (is the anchor necessary?) or ``denoising`` (is it sufficient?).
        donors: ``same_relation``, ``random``, ``mean``, ``zero``, ``noise``, or a
            :class:`~anchorlens.questions.donors.DonorRule`.
        n_donors: Most donors for a row; averaged per row before anything else.
        align: ``equal``: paired segments have equal length; ``last``: paired from their last token.
        layers: Layers to measure; all where it is left out.
        known_only: Keep only questions that the model answers right, with its own answer in the input.
        prompt: ``qa``, ``fewshot(k, seed)``, ``chat``, or a :class:`~anchorlens.questions.prompts.Prompt`.
        add_bos: None: BOS as the Hugging Face tokenizer adds it to text.
        null_donors: For how many donors of each row the null is measured as well; 0 leaves it out.
        answers: For truth readouts: ``given`` or ``generated``, as in :func:`anchorlens.knockout_sweep`.
        distractor: For ``given`` answers: ``matched`` or ``random``.
        delta_kind: For truth readouts: ``confidence`` (in the clean prediction), ``signed`` or ``true_label``.
        probes: Fitted probes for the readout ``probe``; trained on the training split where they are left out.
        probe_site: Where probes that are trained here read: ``resid_post``, ``mlp_out`` or ``attn_out``.
        fractions: For truth readouts: shares of training, validation and test questions.
        max_new_tokens: Longest generated answer, for ``known_only`` and ``generated``.
        n_resamples: Bootstrap resamples of the bands.
        batch_size: Rows in one forward pass; chosen for the memory at hand where it is left out.
        seed: Decides donors, shots, null positions, noise and resamples. No global state is touched.
        progress: Show a progress bar with the time left.

    Returns:
        A :class:`~anchorlens.results.sweep.SweepResult`.

    Raises:
        InputError: An argument is not one of those above, or the architecture lacks the site.
        EmptySweepError: No row is left; the message counts the reasons.
    """
    adapter = Adapter(model)
    qa = data if isinstance(data, QAData) else load_qa(data, seed=seed)
    config = check_swap(
        adapter, anchors=tuple(anchors), readout=readout, site=site, window=window, direction=direction, donors=donors,
        n_donors=n_donors, align=align, layers=layers, known_only=known_only, null_donors=null_donors,
        max_new_tokens=max_new_tokens, n_resamples=n_resamples, seed=seed,
    )  # fmt: skip
    if config.readout in TRUTH_READOUTS:
        config = check_truth(
            config, answers=answers, distractor=distractor, delta_kind=delta_kind, probes=probes, probe_site=probe_site,
            fractions=fractions, n_layers=adapter.n_layers,
        )  # fmt: skip
    else:
        check_no_truth(
            config.readout, answers=(answers, "given"), distractor=(distractor, "matched"), delta_kind=(delta_kind, "confidence"),
            probes=(probes, None), probe_site=(probe_site, "resid_post"), fractions=(fractions, FRACTIONS),
        )  # fmt: skip
    plan = _prepare(
        adapter, qa, config, prompt=prompt, add_bos=add_bos, rule=donors, site=site, readout=readout, probes=probes,
        batch_size=batch_size, progress=progress,
    )  # fmt: skip
    return _run(adapter, plan, site=site, batch_size=batch_size, progress=progress)


def _prepare(
    adapter: Adapter, data: QAData, config: SwapConfig, *, prompt: PromptLike, add_bos: bool | None, rule: DonorLike,
    site: SiteLike, readout: ReadoutLike, probes: LayerProbes | None, batch_size: int | None, progress: bool,
) -> _Plan:  # fmt: skip
    """Rows, donors and pairs."""
    hf = adapter.model.tokenizer
    if hf is None:
        raise InputError(
            "This HookedTransformer has no tokenizer. Set model.tokenizer, or load it with anchorlens.load_model."
        )
    made = make_prompt(prompt, data.examples, data.pool, config.seed)
    asked = config.readout == "p_true"
    tokenizer = RowTokenizer(hf, made, add_bos=add_bos, max_length=adapter.model.cfg.n_ctx, ask=asked)
    config = replace(config, prompt=made.name, add_bos=tokenizer.add_bos)
    shots = made.shot_ids if isinstance(made, FewShotPrompt) else frozenset()
    examples = [e for e in data.examples if e.question_id not in shots]
    dropped = [*data.dropped, *(drop(e, "used_as_shot") for e in data.examples if e.question_id in shots)]
    reading = answer_reading(readout) if config.readout not in TRUTH_READOUTS else None
    if reading is None:
        rows, reading = _truth_rows(
            adapter, data, examples, tokenizer, config, probes=probes, batch_size=batch_size, progress=progress
        )
    elif config.known_only:
        rows = known_rows(
            adapter, examples, tokenizer, max_new_tokens=config.max_new_tokens, batch_size=batch_size, progress=progress
        )
    else:
        rows = make_rows(examples, tokenizer)
    dropped += rows.dropped
    check_not_empty(rows.rows, dropped, f"in {data.name}")
    pool = make_rows((e for e in data.pool if e.question_id not in shots), tokenizer).rows
    maker = PairMaker(
        anchors=config.anchors, direction=config.direction, align=config.align, null_donors=config.null_donors,
        seed=config.seed, tokenizer=tokenizer,
    )  # fmt: skip
    statistics = None
    if config.donors in STATISTIC_RULES:
        statistics = StreamStatistics(adapter, pool, site, config.seed, batch_size=16)
        pairs = maker.with_statistic(rows.rows, config.donors, statistics)
    else:
        picker = DonorPicker(pool, rule, config.anchors, config.align, config.n_donors, config.seed)
        pairs = maker.with_donors(rows.rows, picker)
    dropped += pairs.dropped
    check_not_empty(pairs.pairs, dropped, f"in {data.name}")
    return _Plan(config, data, rows, pairs, tuple(dropped), statistics, reading)


def _truth_rows(
    adapter: Adapter, data: QAData, examples: Sequence[Example], tokenizer: RowTokenizer, config: SwapConfig, *,
    probes: LayerProbes | None, batch_size: int | None, progress: bool,
) -> tuple[Rows, Reading]:  # fmt: skip
    """Rows with true and false answers, and what reads their truth."""
    assert config.fractions is not None  # set with the readout
    truth = truth_rows(
        adapter, examples, tokenizer, answers=config.answers, distractor=config.distractor, fractions=config.fractions,
        max_new_tokens=config.max_new_tokens, batch_size=batch_size, seed=config.seed, progress=progress,
    )  # fmt: skip
    check_not_empty(truth.rows, [*data.dropped, *truth.dropped], f"in {data.name}")
    if config.readout == "p_true":
        reading = truth_question_reading(adapter, truth)
    else:
        truth.check()
        size = rows_per_batch(adapter, max(len(row.ids) for row in truth.rows), batch_size)
        reading = probe_reading(
            adapter,
            truth,
            probes,
            site=config.probe_site,
            batch_size=size,
            model=card_of(adapter.model).name,
            dataset=data.name,
        )
    assert reading.rows is not None  # truth readings choose their rows
    return Rows(reading.rows, truth.dropped), reading


def _run(adapter: Adapter, plan: _Plan, *, site: SiteLike, batch_size: int | None, progress: bool) -> SweepResult:
    config, reading = plan.config, plan.reading
    layers = tuple(
        layer
        for layer in config.layers
        if any(_reached(config, reading, anchor, "none", layer, site) for anchor in config.anchors)
    )
    if not layers:
        raise InputError(
            f"The probe reads layer {reading.k_star}, and no change at layers {config.layers} of {config.site} can reach it. "
            "Take lower layers."
        )
    card = card_of(adapter.model)
    width = max(len(p.target.ids) for p in plan.pairs.pairs)
    size = rows_per_batch(adapter, width, batch_size)
    batches = make_batches(plan.pairs.pairs, size)
    ids = {"model": card.name, "dataset": plan.data.name}
    run_id = run_id_of(asdict(config), model_record(card), data_record(plan.data))
    forwards = sum(len(b) * (1 + len(b[0].placements) * len(layers)) for b in batches)
    frames: list[pd.DataFrame] = []
    label = f"swap {card.name} {plan.data.name}"
    with tqdm(total=forwards, desc=label, unit="row", unit_scale=True, disable=not progress, dynamic_ncols=True) as bar:
        for pairs in batches:
            before, after = run_swaps(
                adapter,
                build_batch(
                    adapter, pairs, site=site, rule=config.donors, statistics=plan.statistics, make_reader=reading.make
                ),
                site=site, layers=layers, window=config.window,
                on_forward=lambda rows: tick(bar, rows),
            )  # fmt: skip
            shared = {**_keys(config), **ids, "run_id": run_id}
            frames.append(samples_frame(shared, layers, *_columns(config, reading, site, layers, pairs, before, after)))
    samples = pd.concat(frames, ignore_index=True)
    record = {
        "config": asdict(config),
        "model": model_record(card),
        "data": data_record(plan.data),
        "environment": environment(adapter.device),
        "plan": {"engine": "reference", "batch_size": size, "batches": [len(b) for b in batches], "forward_rows": forwards},
        "counts": {
            "evaluated": len({p.base.row_id for p in plan.pairs.pairs}),
            "dropped": dict(Counter(d.reason for d in plan.dropped).most_common()),
            "null_shortfall": plan.pairs.null_shortfall,
            "failed_pairs": plan.pairs.failed_pairs,
        },
    }
    if reading.truth is not None:
        record["probe"] = _probe_record(config, reading, reading.truth)
        record["counts"]["rows"] = reading.truth.sizes
    return SweepResult.make(samples, _examples(plan, run_id), record, run_id).with_probes(reading.probes)


def _probe_record(config: SwapConfig, reading: Reading, truth: TruthRows) -> dict[str, object]:
    """k*, the probes' validation AUC, and what the answers' text alone tells."""
    aucs = {} if reading.probes is None else {str(k): p.validation_auc_ for k, p in reading.probes.probes.items()}
    readable = all(len({truth.rows[i].answer.label for i in truth.of(name)}) == 2 for name in ("train", "test"))
    alone = text_only(truth, n_resamples=config.n_resamples, seed=config.seed) if readable else None
    return {"k_star": reading.k_star, "validation_auc": no_nan(aucs), "text_only": alone}


def _keys(config: SwapConfig) -> dict[str, object]:
    return {
        "protocol": "swap", "pathway": "", "site": config.site, "window": config.window, "direction": config.direction,
        "mode": config.mode, "readout": config.readout, "delta_kind": config.delta_kind, "seed": config.seed,
    }  # fmt: skip


def _columns(
    config: SwapConfig,
    reading: Reading,
    site: SiteLike,
    layers: Sequence[int],
    pairs: Sequence[Pair],
    before: Metrics,
    after: Sequence[Metrics],
) -> tuple[pd.DataFrame, list[tuple[dict[str, object], Metrics]], Metrics]:
    """One frame row for each pair, one entry for each anchor and control, and the clean metrics."""
    rows = pd.DataFrame(
        {
            "example_id": [p.base.row_id for p in pairs],
            "question_id": [p.base.example.question_id for p in pairs],
            "donor_id": [p.donor_id for p in pairs],
            "event": [reading.event(p.base) for p in pairs],
        }
    )
    cells: list[tuple[dict[str, object], Metrics]] = []
    for place, metrics in zip(pairs[0].placements, after, strict=True):
        trivial = [place.control == "none" and _is_trivial(config, reading, place.anchor, layer) for layer in layers]
        reached = [_reached(config, reading, place.anchor, place.control, layer, site) for layer in layers]
        own = {"anchor": place.anchor, "control": place.control, "trivial": np.array(trivial), "reached": np.array(reached)}
        cells.append((own, metrics))
    return rows, cells, before


def _reached(config: SwapConfig, reading: Reading, anchor: str, control: str, layer: int, site: SiteLike) -> bool:
    """Whether a cell can reach what is read."""
    first = max(0, layer - (config.window - 1) // 2)
    return reading.reaches(first, site, at_answer=anchor == "answer" and control == "none")


def _is_trivial(config: SwapConfig, reading: Reading, anchor: str, layer: int) -> bool:
    """Whether a cell's value says nothing: it follows from how the cell is made.

    The donor's answer tokens come in as inputs at layer 0 of ``answer_site_all``; and where the probe's own state at k* is put
    there, the probe reads the donor.
    """
    first = layer - (config.window - 1) // 2
    if anchor == "answer_site_all" and config.site == "resid_pre" and first <= 0:
        return True
    return anchor == "answer" and reading.k_star is not None and first <= reading.k_star < first + config.window


def _examples(plan: _Plan, run_id: str) -> pd.DataFrame:
    """Base rows, donors, corrupt inputs and dropped rows of a sweep."""
    donors: dict[str, TokenRow] = {}
    donor_ids: dict[str, list[str]] = {}
    nulls: dict[str, dict[str, list[int]]] = {}
    corrupt: dict[str, TokenRow] = {}
    for pair in plan.pairs.pairs:
        donor_ids.setdefault(pair.base.row_id, []).append(pair.donor_id)
        if pair.donor is not None:
            donors[pair.donor.row_id] = pair.donor
        if pair.target is not pair.base:
            corrupt[pair.target.row_id] = pair.target
        for place in pair.placements:
            if place.control == "null":
                nulls.setdefault(pair.target.row_id, {})[f"null:{place.anchor}:{pair.donor_id}"] = list(place.target)
    if plan.statistics is not None:
        donors = {row.row_id: row for row in plan.statistics.reference} if plan.config.donors == "mean" else {}
    base = [row for row in plan.rows.rows if row.row_id in donor_ids]
    truth, measured = plan.reading.truth, plan.reading.rows or ()
    fitted: dict[str, list[TokenRow]] = {}
    if truth is not None and len(measured) < len(truth.rows):  # p_true measures every row
        fitted = {name: [truth.rows[i] for i in truth.of(name)] for name in ("train", "validation")}
    inputs = {"base": base, **fitted, "donor": list(donors.values()), "corrupt": list(corrupt.values())}
    return examples_frame(
        run_id, plan.data.name, plan.config.prompt, inputs=inputs, dropped=plan.dropped, donor_ids=donor_ids, positions=nulls
    )


__all__ = ["SwapConfig", "swap_sweep"]
