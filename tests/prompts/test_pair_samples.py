"""Embedded samples of prompt pairs: form, balance, lengths with SmolLM2, and what the model does
with them.
"""

from collections import Counter

import pytest
import torch

import anchorlens as al
from anchorlens.engine.patches import pad_rows
from anchorlens.models.load import adapt
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.prompts.pair_samples import PAIR_SAMPLES
from anchorlens.prompts.tokenize_pairs import set_up_pairs
from anchorlens.protocols.patch.spec import Patch
from tests.tiers import choose_cases


@pytest.mark.parametrize("name", PAIR_SAMPLES)
def test_a_sample_has_fifty_groups_of_two_different_pairs(name):
    data = load_pairs(name)
    assert (len(data), data.dropped, data.name, data.source) == (100, (), name, f"sample:{name}")
    assert set(Counter(pair.group for pair in data.pairs).values()) == {2}
    assert len({(pair.clean, pair.corrupted) for pair in data.pairs}) == 100
    assert load_pairs(name, limit=3).pairs == data.pairs[:3]
    for pair in data.pairs:
        assert (
            pair.answer.startswith(" ") and pair.wrong.startswith(" ") and pair.answer != pair.wrong
        )


@pytest.mark.parametrize("name", ["facts-pairs", "induction-pairs"])
def test_both_directions_of_a_couple_are_pairs(name):
    """So that neither answer is right more often."""
    pairs = {
        (pair.clean, pair.corrupted, pair.answer, pair.wrong) for pair in load_pairs(name).pairs
    }
    assert {(b, a, wrong, answer) for a, b, answer, wrong in pairs} == pairs


def test_indirect_objects_differ_in_the_second_subject_alone():
    for pair in load_pairs("ioi-pairs").pairs:
        answer, wrong = pair.answer.strip(), pair.wrong.strip()
        words = [text.replace(",", " ,").split() for text in (pair.clean, pair.corrupted)]
        (changed,) = [(a, b) for a, b in zip(*words, strict=True) if a != b]
        assert changed == (wrong, answer)
        assert [one.count(answer) for one in words] == [1, 2] and [
            one.count(wrong) for one in words
        ] == [2, 1]


def test_repeated_lists_end_before_the_answer_and_have_the_same_words():
    for pair in load_pairs("induction-pairs").pairs:
        clean, corrupted = pair.clean.split()[1:], pair.corrupted.split()[1:]
        assert sorted(clean) == sorted(corrupted)
        for words, next_word in ((clean, pair.answer), (corrupted, pair.wrong)):
            start = words.index(words[0], 1)
            repeated = len(words) - start
            assert words[start:] == words[:repeated] and words[repeated] == next_word.strip()


@pytest.mark.parametrize("name", choose_cases((), PAIR_SAMPLES, slow=("ioi-pairs",)))
def test_smollm2_prefers_the_answer_after_the_clean_prompt(smollm2, name):
    context = set_up_pairs(adapt(smollm2), load_pairs(name), Patch())
    assert len(context.pairs) == 100
    assert all(
        len(one.clean.ids) == len(one.corrupted.ids) and len(one.answer) == len(one.wrong) == 1
        for one in context.pairs
    )
    segments = {segment for one in context.pairs for segment in one.clean.pair.segments}
    assert all(segments <= set(one.corrupted.positions) for one in context.pairs)
    some = context.pairs[:60]
    rows = [one.clean.ids for one in some] + [one.corrupted.ids for one in some]
    tokens = pad_rows([list(row) for row in rows]).ids
    last = torch.tensor([len(row) - 1 for row in rows])
    answers, wrongs = (
        torch.tensor([getattr(one, name)[0] for one in some] * 2) for name in ("answer", "wrong")
    )
    every = torch.arange(len(rows))
    with torch.no_grad():
        stream = smollm2(tokens, stop_at_layer=smollm2.cfg.n_layers)[every, last]
        logits = smollm2.unembed(smollm2.ln_final(stream[:, None]))[:, 0]
    clean, corrupted = (logits[every, answers] - logits[every, wrongs]).view(2, -1)
    assert (clean > 0).float().mean() >= 0.95 and (corrupted < clean).float().mean() >= 0.95


@pytest.mark.slow
def test_a_run_on_a_sample_is_verified_without_the_data_set(tiny_model, tmp_path, plain_figure):
    run = al.patch_sweep(
        tiny_model("gpt2"),
        load_pairs("facts-pairs", limit=10),
        layers=[0],
        n_spot_checks=0,
        progress=False,
    )
    path = run.save(tmp_path / "run")
    found = {check.what: check.status for check in al.verify_run(path, cells=0).checks}
    assert found["data: facts-pairs"] == "match"


def test_a_study_names_a_sample():
    (data,) = al.Study("smollm2-135m-instruct", "ioi-pairs", al.Patch()).check(models=False)
    assert data.sha256 == load_pairs("ioi-pairs").sha256
    (some,) = al.Study(
        "smollm2-135m-instruct", al.DatasetSpec("ioi-pairs", limit=3), al.Patch()
    ).check(models=False)
    assert (some.name, len(some)) == ("ioi-pairs", 3)
