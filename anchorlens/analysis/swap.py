"""The swap protocol: activation patching of residual streams, layer by layer (METHOD 4).

Method: at one layer, the stream at an anchor's positions is replaced by that of a donor run; the model goes on; P of the base's
answer is read. ΔP = 100 * (P after - P before), in percentage points; negative where the change took support away (noising), or
positive where it gave support back (denoising). Beside every curve stands a null: the donor's streams at random other positions.

Scope: one model, one data set, one site, one readout in each call. Not done here: probes and knockout.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd
from tqdm.auto import tqdm
from transformer_lens import HookedTransformer

from anchorlens.analysis.pairs import Pair, PairMaker, Pairs, build_batch, make_batches
from anchorlens.analysis.rows import Rows, check_not_empty, drop, known_rows, make_rows, tick
from anchorlens.analysis.stream_statistics import StreamStatistics
from anchorlens.engine.plan import rows_per_batch
from anchorlens.engine.readouts import Metrics, ReadoutLike, make_readout
from anchorlens.engine.reference import run_swaps
from anchorlens.errors import InputError, did_you_mean
from anchorlens.models.adapter import Adapter, SiteLike, site_name
from anchorlens.models.card import card_of
from anchorlens.questions.datasets import DatasetLike, FrameLike, QAData, load_qa
from anchorlens.questions.donors import ALIGNMENTS, STATISTIC_RULES, DonorLike, DonorPicker, rule_name
from anchorlens.questions.example import Dropped
from anchorlens.questions.prompts import FewShotPrompt, PromptLike, make_prompt
from anchorlens.questions.tokens import ANCHORS, RowTokenizer, TokenRow
from anchorlens.results.provenance import data_record, environment, model_record, run_id_of
from anchorlens.results.sweep import SweepResult, examples_frame, samples_frame

DIRECTIONS = ("noising", "denoising")


@dataclass(frozen=True)
class SwapConfig:
    """Everything that decides a sweep's numbers, as names and numbers; written into run.json."""

    protocol: str
    anchors: tuple[str, ...]
    readout: str
    site: str
    window: int
    direction: str
    donors: str
    n_donors: int
    align: str
    layers: tuple[int, ...]
    known_only: bool
    prompt: str
    add_bos: bool
    null_donors: int
    max_new_tokens: int
    n_resamples: int
    seed: int

    @property
    def mode(self) -> str:
        """The donor rule, and the alignment where it is not ``equal``: the ``mode`` column of the outputs."""
        return self.donors if self.align == "equal" else f"{self.donors}, align={self.align}"


@dataclass(frozen=True)
class _Plan:
    """A sweep that is ready to run."""

    config: SwapConfig
    data: QAData
    rows: Rows
    pairs: Pairs
    dropped: tuple[Dropped, ...]
    statistics: StreamStatistics | None


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
            ``question_rest``, ``prompt_last``, ``answer_site``, ``answer_site_all``.
        readout: ``first_token``, ``answer_mean``, ``answer_joint``, or a :class:`~anchorlens.engine.readouts.Readout`.
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
        max_new_tokens: Longest generated answer, for ``known_only``.
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
    config = _check(
        adapter, anchors=tuple(anchors), readout=readout, site=site, window=window, direction=direction, donors=donors,
        n_donors=n_donors, align=align, layers=layers, known_only=known_only, null_donors=null_donors,
        max_new_tokens=max_new_tokens, n_resamples=n_resamples, seed=seed,
    )  # fmt: skip
    plan = _prepare(
        adapter, qa, config, prompt=prompt, add_bos=add_bos, rule=donors, site=site, batch_size=batch_size, progress=progress,
    )  # fmt: skip
    return _run(adapter, plan, site=site, readout=readout, batch_size=batch_size, progress=progress)


def _check(
    adapter: Adapter, *, anchors: tuple[str, ...], readout: ReadoutLike, site: SiteLike, window: int, direction: str,
    donors: DonorLike, n_donors: int, align: str, layers: Sequence[int] | None, known_only: bool, null_donors: int,
    max_new_tokens: int, n_resamples: int, seed: int,
) -> SwapConfig:  # fmt: skip
    """Names and ranges of all arguments; what depends on the data comes later."""
    rule = rule_name(donors)
    for value, known, what in ((direction, DIRECTIONS, "direction"), (align, ALIGNMENTS, "align")):
        if value not in known:
            raise InputError(f"Unknown {what}={value!r}. {did_you_mean(value, known)}")
    if not anchors or len(set(anchors)) != len(anchors):
        raise InputError(f"anchors must name at least one anchor, each once; got {anchors}.")
    for anchor in anchors:
        if anchor not in ANCHORS:
            raise InputError(f"Unknown anchor {anchor!r}. {did_you_mean(anchor, ANCHORS)}")
        if anchor == "answer":
            raise InputError(
                "The anchor 'answer' is for readouts after the answer: a stream at an answer token cannot change that token's "
                "own probability. Use 'answer_site' or 'answer_site_all'."
            )
    if direction == "denoising" and rule in STATISTIC_RULES:
        raise InputError(
            f"direction='denoising' needs donor rows, and donors={rule!r} has none. Use 'same_relation' or 'random'."
        )
    for name, value, least in (
        ("window", window, 1), ("n_donors", n_donors, 1), ("null_donors", null_donors, 0), ("max_new_tokens", max_new_tokens, 1),
        ("n_resamples", n_resamples, 1), ("seed", seed, 0),
    ):  # fmt: skip
        if value < least:
            raise InputError(f"{name} must be at least {least}, got {value}.")
    chosen = tuple(range(adapter.n_layers)) if layers is None else tuple(int(layer) for layer in layers)
    if not chosen or len(set(chosen)) != len(chosen) or not all(0 <= layer < adapter.n_layers for layer in chosen):
        raise InputError(f"layers must be different numbers from 0 to {adapter.n_layers - 1}, got {chosen}.")
    adapter.hook_name(site, chosen[0])
    return SwapConfig(
        "swap", anchors, make_readout(readout)[0], site_name(site), window, direction, rule, n_donors, align, chosen, known_only,
        prompt="", add_bos=False, null_donors=null_donors, max_new_tokens=max_new_tokens, n_resamples=n_resamples, seed=seed,
    )  # fmt: skip


def _prepare(
    adapter: Adapter, data: QAData, config: SwapConfig, *, prompt: PromptLike, add_bos: bool | None, rule: DonorLike,
    site: SiteLike, batch_size: int | None, progress: bool,
) -> _Plan:  # fmt: skip
    """Rows, donors and pairs."""
    hf = adapter.model.tokenizer
    if hf is None:
        raise InputError(
            "This HookedTransformer has no tokenizer. Set model.tokenizer, or load it with anchorlens.load_model."
        )
    made = make_prompt(prompt, data.examples, data.pool, config.seed)
    tokenizer = RowTokenizer(hf, made, add_bos=add_bos, max_length=adapter.model.cfg.n_ctx)
    config = SwapConfig(**{**asdict(config), "prompt": made.name, "add_bos": tokenizer.add_bos})
    shots = made.shot_ids if isinstance(made, FewShotPrompt) else frozenset()
    examples = [e for e in data.examples if e.question_id not in shots]
    dropped = [*data.dropped, *(drop(e, "used_as_shot") for e in data.examples if e.question_id in shots)]
    if config.known_only:
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
    return _Plan(config, data, rows, pairs, tuple(dropped), statistics)


def _run(
    adapter: Adapter, plan: _Plan, *, site: SiteLike, readout: ReadoutLike, batch_size: int | None, progress: bool
) -> SweepResult:
    config = plan.config
    card = card_of(adapter.model)
    width = max(len(p.target.ids) for p in plan.pairs.pairs)
    size = rows_per_batch(adapter, width, batch_size)
    batches = make_batches(plan.pairs.pairs, size)
    ids = {"model": card.name, "dataset": plan.data.name}
    run_id = run_id_of(asdict(config), model_record(card), data_record(plan.data))
    forwards = sum(len(b) * (1 + len(b[0].placements) * len(config.layers)) for b in batches)
    frames: list[pd.DataFrame] = []
    label = f"swap {card.name} {plan.data.name}"
    with tqdm(total=forwards, desc=label, unit="row", unit_scale=True, disable=not progress, dynamic_ncols=True) as bar:
        for pairs in batches:
            before, after = run_swaps(
                adapter,
                build_batch(
                    adapter, pairs, site=site, rule=config.donors, statistics=plan.statistics,
                    first_only=config.readout == "first_token",
                ),
                site=site, layers=config.layers, window=config.window, readout=make_readout(readout)[1],
                on_forward=lambda rows: tick(bar, rows),
            )  # fmt: skip
            shared = {**_keys(config), **ids, "run_id": run_id}
            frames.append(samples_frame(shared, config.layers, *_columns(config, pairs, before, after)))
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
    return SweepResult.make(samples, _examples(plan, run_id), record, run_id)


def _keys(config: SwapConfig) -> dict[str, object]:
    return {
        "protocol": "swap", "pathway": "", "site": config.site, "window": config.window, "direction": config.direction,
        "mode": config.mode, "readout": config.readout, "delta_kind": "probability", "seed": config.seed,
    }  # fmt: skip


def _columns(
    config: SwapConfig, pairs: Sequence[Pair], before: Metrics, after: Sequence[Metrics]
) -> tuple[pd.DataFrame, list[tuple[dict[str, object], Metrics]], Metrics]:
    """One frame row for each pair, one entry for each anchor and control, and the clean metrics."""
    rows = pd.DataFrame(
        {
            "example_id": [p.base.row_id for p in pairs],
            "question_id": [p.base.example.question_id for p in pairs],
            "donor_id": [p.donor_id for p in pairs],
        }
    )
    cells: list[tuple[dict[str, object], Metrics]] = []
    for place, metrics in zip(pairs[0].placements, after, strict=True):
        trivial = [
            place.anchor == "answer_site_all" and place.control == "none" and config.site == "resid_pre"
            and layer - (config.window - 1) // 2 <= 0
            for layer in config.layers
        ]  # fmt: skip
        cells.append(({"anchor": place.anchor, "control": place.control, "trivial": np.array(trivial)}, metrics))
    return rows, cells, before


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
    return examples_frame(
        run_id, plan.data.name, plan.config.prompt, base=base, donors=list(donors.values()), corrupt=list(corrupt.values()),
        dropped=plan.dropped, donor_ids=donor_ids, nulls=nulls,
    )  # fmt: skip


__all__ = ["SwapConfig", "swap_sweep"]
