"""The swap protocol: activation patching of residual streams, layer by layer (METHOD 4).

Method: at one layer, the stream at an anchor's positions is replaced by that of a donor run; the model goes on; P of the base's
answer is read. ΔP = 100 * (P after - P before), in percentage points; negative where the change took support away (noising), or
positive where it gave support back (denoising). Beside every curve stands a null: the donor's streams at random other positions.

Scope: one model, one data set, one site, one readout in each call. Truth readouts: :mod:`anchorlens.analysis.readings`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from transformer_lens import HookedTransformer

from anchorlens.analysis.checks import check_count
from anchorlens.analysis.pairs import PairMaker
from anchorlens.analysis.probes import LayerProbes
from anchorlens.analysis.readings import (
    TRUTH_READOUTS,
    Reading,
    answer_reading,
    probe_reading,
    truth_question_reading,
)
from anchorlens.analysis.rows import Rows, check_not_empty, drop, known_rows, make_rows
from anchorlens.analysis.stream_statistics import StreamStatistics
from anchorlens.analysis.swap_config import SwapConfig, check_no_truth, check_swap, check_truth
from anchorlens.analysis.swap_run import PreparedSweep, run_sweep
from anchorlens.analysis.truth import truth_rows
from anchorlens.engine.plan import RunOptions, SweepPlan, parse_memory, rows_per_batch
from anchorlens.engine.readouts import ReadoutLike
from anchorlens.engine.select import check_engine
from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, SiteLike
from anchorlens.models.card import card_of
from anchorlens.questions.datasets import DatasetLike, FrameLike, QAData, load_qa
from anchorlens.questions.donors import STATISTIC_RULES, DonorLike, DonorPicker
from anchorlens.questions.example import Example
from anchorlens.questions.given import FRACTIONS
from anchorlens.questions.prompts import FewShotPrompt, PromptLike, make_prompt
from anchorlens.questions.tokens import RowTokenizer
from anchorlens.results.sweep import SweepResult


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
    engine: str = "cone",
    max_memory: int | str | None = None,
    check_cells: int = 4,
    on_plan: Callable[[SweepPlan], None] | None = None,
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
        batch_size: Rows in one pass, each with one donor; chosen for the memory at hand where it is left out.
        engine: ``cone``: one pass for all layers; where the model does not allow it, the oracle measures and a warning says why.
            ``reference``: the oracle, one full forward pass for each anchor, control and layer.
        max_memory: Most memory beside the model, in bytes or as ``"2GB"``; half of what is free where it is left out.
        check_cells: So many random cells are measured again by the oracle (not where it measured all of them itself).
        on_plan: Called with the :class:`~anchorlens.engine.plan.SweepPlan` (batches, predicted FLOPs, seconds and memory)
            before anything is measured; what it raises stops the sweep.
        seed: Decides donors, shots, null positions, noise and resamples. No global state is touched.
        progress: Show a progress bar with the time left.

    Returns:
        A :class:`~anchorlens.results.sweep.SweepResult`.

    Raises:
        InputError: An argument is not one of those above, or the architecture lacks the site.
        EmptySweepError: No row is left; the message counts the reasons.
        CheckError: A cell that was measured again by the oracle came out differently.
    """
    adapter = Adapter(model)
    check_engine(engine)
    memory = parse_memory(max_memory)
    check_count(check_cells)
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
    options = RunOptions(engine, batch_size, memory, check_cells, on_plan, progress)
    return run_sweep(adapter, plan, site=site, options=options)


def _prepare(
    adapter: Adapter, data: QAData, config: SwapConfig, *, prompt: PromptLike, add_bos: bool | None, rule: DonorLike,
    site: SiteLike, readout: ReadoutLike, probes: LayerProbes | None, batch_size: int | None, progress: bool,
) -> PreparedSweep:  # fmt: skip
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
    return PreparedSweep(config, data, rows, pairs, tuple(dropped), statistics, reading)


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


__all__ = ["SwapConfig", "swap_sweep"]
