"""Token patching: E_Q's text is replaced by another question's, the answer is kept, and a truth probe is read (METHOD 5).

Scope: one model, one data set, one donor rule in each call. Not done here: curves of answer probabilities (that is what a swap at
layer 0 measures), and several segments at a time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from anchorlens.engine.engine import Engine
from anchorlens.errors import EmptySweepError
from anchorlens.models.adapter import Adapter
from anchorlens.protocols.knockout.cut_tokens import RANDOM
from anchorlens.protocols.patch_tokens.batching import PatchPlan, plan_patches
from anchorlens.protocols.patch_tokens.contrasts import patch_contrasts, patch_summary
from anchorlens.protocols.patch_tokens.measuring import PatchUnit, PreparedPatches, measured_pairs, read_tests
from anchorlens.protocols.patch_tokens.patching import Patcher, restored_patch
from anchorlens.protocols.patch_tokens.spec import PatchTokens
from anchorlens.protocols.patch_tokens.wording import patch_words
from anchorlens.protocols.plug import Bench, OnWork, Plan
from anchorlens.protocols.sweeps import short_way
from anchorlens.protocols.truth_probing import TruthProtocol, fitted_probes, labelled_rows, probe_record
from anchorlens.protocols.written import Written
from anchorlens.questions.example import Dropped
from anchorlens.questions.more import more_questions
from anchorlens.questions.tokenised import drop, make_rows
from anchorlens.questions.tokens import TokenRow
from anchorlens.results.pathways import PathwayResult
from anchorlens.statistics.bands import auc_band
from anchorlens.statistics.contrasts import auc_of
from anchorlens.statistics.pathways import MATCHED
from anchorlens.statistics.resamples import Resamples


class PatchProtocol(TruthProtocol[PatchTokens, PreparedPatches]):
    """Tokens of the question are replaced."""

    name, title, spec = "patch_tokens", "token patching", PatchTokens

    def prepare(self, bench: Bench, spec: PatchTokens) -> PreparedPatches:
        """See :class:`SweepProtocol`."""
        truth, dropped = labelled_rows(bench, spec)
        test = tuple(truth.of("test"))
        pool = make_rows(bench.pool, bench.tokenizer).rows
        patcher = Patcher(bench.tokenizer, pool, rule=spec.donors, n_donors=spec.n_donors, seed=spec.seed)
        rows = {j: truth.rows[i] for j, i in enumerate(test)}
        made = patcher.patches({j: row for j, row in rows.items() if spec.base == "all" or row.answer.label == 0})
        if not made.patches:
            reasons = ", ".join(f"{reason} {n}" for reason, n in made.failed.items()) or "no pair could be tried"
            raise EmptySweepError(
                f"No row of {bench.data.name} has a donor whose subject and property take as many tokens as its own ({reasons}). "
                "Take more rows (donors come from the whole file), or donors='random'."
            )
        return PreparedPatches(
            (*dropped, *made.dropped), truth.rows[0].ids, (spec.probe_site,), spec.layers_of(bench.adapter.n_layers), truth, test,
            bench.model_name, bench.data.name, {}, made.patches, made.failed,
        )  # fmt: skip

    def plan(self, engine: Engine, ready: PreparedPatches, spec: PatchTokens) -> PatchPlan:
        """See :class:`SweepProtocol`."""
        return plan_patches(engine, ready, spec)

    def fit(self, engine: Engine, ready: PreparedPatches, spec: PatchTokens, plan: Plan, on_work: OnWork) -> PreparedPatches:
        """Probes, the pathways of the test rows, and which of these are measured.

        Raises:
            EmptySweepError: No true row is predicted true.
        """
        assert isinstance(plan, PatchPlan)  # what plan() gave
        every = range(engine.adapter.n_layers)
        fitted = replace(ready, probes=fitted_probes(engine, ready, spec, plan, on_work, placebos=False, allowed=every))
        clean, q = read_tests(engine, fitted, spec, plan.reading, plan.memory, on_work)
        assert fitted.k_star is not None  # probes were fitted
        predicted_false = clean[ready.layers.index(fitted.k_star)] >= 0.5
        asked = {patch.test for patch in ready.patches}
        kept = np.array([j in asked and (spec.base == "all" or not predicted_false[j]) for j in range(len(ready.test))])
        if not kept.any():
            raise EmptySweepError(
                f"None of {len(asked)} true test rows is predicted true by the probe at k* = {fitted.k_star}. Take "
                f"{more_questions()}, or base='all'."
            )
        gone = [_predicted_false(ready.row(j)) for j in sorted(asked) if not kept[j]]
        return replace(fitted, clean=clean, q=q, kept=kept, dropped=(*ready.dropped, *gone))

    def measure(
        self, engine: Engine, ready: PreparedPatches, spec: PatchTokens, unit: PatchUnit, on_work: OnWork
    ) -> pd.DataFrame:
        """See :class:`SweepProtocol`."""
        return measured_pairs(engine, ready, spec, unit, on_work)

    def cells(self, ready: PreparedPatches, samples: Sequence[Mapping[str, Any]]) -> tuple[PreparedPatches, PatchUnit]:
        """Their pairs and their patched inputs, beside the clean rows."""
        keys = {(cell["example_id"], cell["donor_id"]) for cell in samples}
        pairs = [
            i for i, patch in enumerate(ready.patches)
            if (ready.row(patch.test).row_id, patch.donor.example.example_id) in keys
        ]  # fmt: skip
        variants = dict.fromkeys(str(cell["control"]) for cell in samples)
        return ready, PatchUnit.of(ready.patches, pairs, tuple(variants))

    def restored(self, adapter: Adapter, spec: PatchTokens, written: Written) -> PreparedPatches:  # noqa: ARG002
        """See :class:`SweepProtocol`; pathways are not in it, for no P hangs on them."""
        base = written.of("base")
        patches = tuple(
            restored_patch(j, row, donor, written) for j, row in enumerate(base) for donor in written.donor_ids[row.row_id]
        )
        every = np.ones(len(base), dtype=np.bool_)
        return PreparedPatches(**written.truth(spec.probe_site), patches=patches, failed={}, q=~every, kept=every)

    def keys(self, spec: PatchTokens) -> dict[str, object]:
        """See :class:`SweepProtocol`."""
        return {
            "site": "", "probe_site": spec.probe_site, "window": 0, "direction": "noising", "mode": spec.mode, "readout": "probe",
            "delta_kind": spec.delta_kind,
        }  # fmt: skip

    def record(self, ready: PreparedPatches, spec: PatchTokens) -> dict[str, Any]:
        """See :class:`SweepProtocol`."""
        pairs = [ready.patches[i] for i in ready.measured]
        rows = {patch.test for patch in pairs}
        with_control = [patch for patch in pairs if RANDOM in patch.inputs]
        own = sum(len(ready.row(patch.test).positions["question"]) for patch in pairs)
        return {
            "config": {"anchors": ["question"], "readout": "probe"},
            "counts": {
                "evaluated": len(rows), "rows": ready.truth.sizes, "pairs": len(pairs), "failed_pairs": ready.failed,
                "without_control": len(rows - {patch.test for patch in with_control}),
                "fewer_in_control": len({p.test for p in with_control if p.inputs[MATCHED] is not p.inputs["none"]}),
                "share_of_question_tokens_changed": sum(len(patch.replaced["none"]) for patch in pairs) / own,
            },
            "probe": {**probe_record(ready, spec), "test_auc": _test_auc(ready, spec)},
        }  # fmt: skip

    def inputs(self, ready: PreparedPatches) -> dict[str, Any]:
        """Measured rows as ``base``, other test rows as ``test``, donors, every patched input as ``corrupt``; what probes saw."""
        assert ready.kept is not None  # after fit()
        truth, pairs = ready.truth, [ready.patches[i] for i in ready.measured]
        corrupt: dict[str, TokenRow] = {}
        where: dict[str, dict[str, list[int]]] = {}
        donor_ids: dict[str, list[str]] = {}
        for patch in pairs:
            donor_ids.setdefault(ready.row(patch.test).row_id, []).append(patch.donor.example.example_id)
            for variant, row in patch.inputs.items():
                corrupt[row.row_id] = row
                where[row.row_id] = {"replaced": list(patch.replaced[variant])}
        inputs = {
            "base": [ready.row(j) for j in range(len(ready.test)) if ready.kept[j]],
            "test": [ready.row(j) for j in range(len(ready.test)) if not ready.kept[j]],
            **{name: [truth.rows[i] for i in truth.of(name)] for name in ("train", "validation")},
            "donor": list({patch.donor.row_id: patch.donor for patch in pairs}.values()),
            "corrupt": list(corrupt.values()),
        }
        return {"inputs": inputs, "donor_ids": donor_ids, "positions": where}

    def contrasts(self, result: PathwayResult) -> pd.DataFrame:
        """``delta_all`` and ``flip_rate`` against the control, levels, gaps and AUC at each layer."""
        return patch_contrasts(result)

    def summary(self, result: PathwayResult) -> pd.DataFrame:
        """What stands at k*, in one row."""
        return patch_summary(result)

    def words(self, result: PathwayResult) -> str:
        """What was found at k*."""
        (numbers,) = self.summary(result).to_dict("records")
        return patch_words(result.record, {str(name): value for name, value in numbers.items()}, result.effects())

    def settings(self, result: PathwayResult) -> str:
        """See :class:`SweepProtocol`."""
        config, counts = result.record["config"], result.record["counts"]
        return (
            f"base {config['base']}, donors {config['donors']} (up to {config['n_donors']}), {config['answers']} answers, "
            f"distractor {config['distractor']}, prompt {config['prompt']}, seed {config['seed']}\n"
            f"rows: {', '.join(f'{name} {n}' for name, n in counts['rows'].items())}; patched {counts['evaluated']}"
        )

    def table(self, results: Sequence[PathwayResult]) -> tuple[str, pd.DataFrame]:
        """Contrasts, flips and ΔP at k*."""
        found = pd.concat([self.summary(result) for result in results], ignore_index=True)

        def with_interval(name: str) -> list[str]:
            ends = zip(found[name], found[f"{name}_low"], found[f"{name}_high"], strict=True)
            return ["-" if pd.isna(value) else f"{value:+.1f} [{low:+.1f}, {high:+.1f}]" for value, low, high in ends]

        def both(name: str, form: str) -> pd.Series:
            shown = [found[f"{name}{end}"].map(lambda v: "-" if pd.isna(v) else form.format(v)) for end in ("", f"_{RANDOM}")]
            return shown[0] + " / " + shown[1]

        table = pd.DataFrame(
            {
                "model": found["model"], "data set": found["dataset"], "layer": found["layer"],
                "AUC": found["auc"].map("{:.2f}".format),
                "n (Q, A)": [f"{n} ({q}, {a})" for n, q, a in zip(found["n_all"], found["n_q"], found["n_a"], strict=True)],
                "delta_all": with_interval("delta_all"), "flip_rate": with_interval("flip_rate"),
                "flips %": both("flips_all", "{:.0f}"), "ΔP": both("all", "{:+.1f}"), "ΔP Q": both("q", "{:+.1f}"),
                "ΔP A": both("a", "{:+.1f}"),
            }
        )  # fmt: skip
        return "Token patching at k*: patch / control, in points. delta_all, flip_rate: patch less control, by row", table


def _predicted_false(row: TokenRow) -> Dropped:
    """The record of a true row that the probe takes for false."""
    return replace(drop(row.example, "predicted_false", "the probe at k* takes it for false"), example_id=row.row_id)


def _test_auc(ready: PreparedPatches, spec: PatchTokens) -> dict[str, Any]:
    """AUC of the clean probe over all test rows at each layer, with its interval over questions."""
    assert ready.clean is not None  # after fit()
    rows = [ready.row(j) for j in range(len(ready.test))]
    labels = np.array([row.answer.label for row in rows], dtype=np.float64)
    draws = Resamples.of([row.example.question_id for row in rows], n_resamples=spec.n_resamples, seed=spec.seed)
    found = auc_of(ready.clean, labels, draws)
    made = auc_band(found.value, found.draws, found.n)
    ends = zip(made.value, made.low, made.high, made.sim_low, made.sim_high, strict=True)
    layers = {str(k): [None if v != v else float(v) for v in five] for k, five in zip(ready.layers, ends, strict=True)}
    return {"layers": layers, "questions": draws.weights.shape[1]}


PROTOCOL = PatchProtocol()
patch_tokens_sweep = short_way(PROTOCOL, PatchTokens, PathwayResult)

__all__ = ["PROTOCOL", "PatchProtocol", "patch_tokens_sweep"]
