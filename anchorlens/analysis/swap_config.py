"""The configuration of a swap sweep, and the check of its arguments: what does not depend on the data."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from anchorlens.analysis.pathways import DELTA_KINDS
from anchorlens.analysis.probes import PROBE_SITES, LayerProbes
from anchorlens.analysis.readings import TRUTH_READOUTS, readout_name
from anchorlens.analysis.truth import check_answers
from anchorlens.engine.readouts import ReadoutLike
from anchorlens.errors import InputError, did_you_mean
from anchorlens.models.adapter import Adapter, SiteLike, site_name
from anchorlens.questions.donors import ALIGNMENTS, STATISTIC_RULES, DonorLike, rule_name
from anchorlens.questions.tokens import ANCHORS

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
    delta_kind: str = "probability"
    answers: str = ""
    distractor: str = ""
    fractions: tuple[float, float, float] | None = None
    probe_site: str = ""
    probes: str = ""

    @property
    def mode(self) -> str:
        """The donor rule, and the alignment where it is not ``equal``: the ``mode`` column of the outputs."""
        return self.donors if self.align == "equal" else f"{self.donors}, align={self.align}"


def check_swap(
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
        if anchor == "answer" and readout_name(readout) not in TRUTH_READOUTS:
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
        "swap", anchors, readout_name(readout), site_name(site), window, direction, rule, n_donors, align, chosen, known_only,
        prompt="", add_bos=False, null_donors=null_donors, max_new_tokens=max_new_tokens, n_resamples=n_resamples, seed=seed,
    )  # fmt: skip


def check_truth(
    config: SwapConfig, *, answers: str, distractor: str, delta_kind: str, probes: LayerProbes | None, probe_site: str,
    fractions: tuple[float, float, float], n_layers: int,
) -> SwapConfig:  # fmt: skip
    """Arguments that only truth readouts have."""
    check_answers(answers, distractor)
    if config.direction == "denoising" and delta_kind == "confidence":
        raise InputError(
            "direction='denoising' starts from a corrupt input, and delta_kind='confidence' speaks of the clean prediction. "
            "Use delta_kind='true_label' or 'signed'."
        )
    for value, known, what in ((delta_kind, DELTA_KINDS, "delta_kind"), (probe_site, PROBE_SITES, "probe_site")):
        if value not in known:
            raise InputError(f"Unknown {what}={value!r}. {did_you_mean(value, known)}")
    if config.known_only:
        raise InputError("known_only=True keeps right answers alone, and a truth readout needs wrong ones too. Leave it off.")
    if probes is not None and (config.readout != "probe" or max(probes.layers) >= n_layers):
        raise InputError(f"probes= is for readout='probe' and a model with these layers; got readout={config.readout!r}.")
    where = "" if config.readout == "p_true" else probe_site if probes is None else probes.site
    given = "" if probes is None else probes.fingerprint
    return replace(
        config,
        delta_kind=delta_kind,
        answers=answers,
        distractor=distractor,
        fractions=fractions,
        probe_site=where,
        probes=given,
    )


def check_no_truth(readout: str, **given: tuple[object, object]) -> None:
    """Arguments that an answer readout would pass over, each with its default.

    Raises:
        InputError: One is not the default.
    """
    for name, (value, default) in given.items():
        if value != default:
            raise InputError(f"{name}= belongs to the readouts 'probe' and 'p_true'; this sweep has readout={readout!r}.")


__all__ = ["SwapConfig", "check_no_truth", "check_swap", "check_truth"]
