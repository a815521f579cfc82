"""Mean, zero and noise in place of a donor's stream."""

import pytest
import torch

import anchorlens as al
from anchorlens.models.load import adapt
from anchorlens.protocols.swap import statistic_donors
from anchorlens.protocols.swap.statistic_donors import StreamStatistics, reference_rows
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer, make_rows
from tests.questions.make import capitals
from tests.torch_defaults import OTHER_DEFAULTS


@pytest.fixture(scope="module")
def pool(tiny_model):
    return make_rows(capitals().pool, RowTokenizer(tiny_model("llama").tokenizer, QAPrompt())).rows


@pytest.fixture
def captures(monkeypatch):
    """Rows of every batch that the statistics run."""
    seen: list[int] = []
    plain = statistic_donors.capture

    def counted(adapter, tokens, site, wanted):
        seen.append(len(tokens.ids))
        return plain(adapter, tokens, site, wanted)

    monkeypatch.setattr(statistic_donors, "capture", counted)
    return seen


def streams_of(model, row, hook):
    """Of a row alone: [layer position width]."""
    _, cache = model.run_with_cache(torch.tensor([row.ids]), prepend_bos=False)
    return torch.stack([cache[f"blocks.{i}.{hook}"][0] for i in range(3)])


def test_noise_has_the_streams_own_spread_and_three_times_the_embeddings_at_layer_0(
    tiny_model, pool
):
    model = tiny_model("llama")
    statistics = StreamStatistics(
        adapt(model), reference_rows(pool, 0), "resid_pre", 0, batch_size=5
    )
    streams = [streams_of(model, row, "hook_resid_pre")[:, 1 : row.prompt_length] for row in pool]
    embeddings = torch.cat([model.embed.W_E[torch.tensor(row.ids)] for row in pool])
    wanted = torch.cat(streams, 1).flatten(1).std(-1, unbiased=False)
    torch.testing.assert_close(statistics.std, wanted, rtol=1e-3, atol=1e-4)
    assert statistics.embedding_std == pytest.approx(float(embeddings.detach().std()), rel=1e-3)


def test_the_mean_is_that_of_the_same_role_and_offset(tiny_model, pool):
    """Against every row alone; batches of 5 have other widths than the whole."""
    model = tiny_model("llama")
    statistics = StreamStatistics(adapt(model), reference_rows(pool, 0), "mlp_out", 0, batch_size=5)
    alone: dict[tuple[str, int], list[torch.Tensor]] = {}
    for row in pool:
        stream = streams_of(model, row, "hook_mlp_out")
        for role in ("subject", "property", "answer", "pre_answer"):
            for offset, position in enumerate(row.positions[role]):
                alone.setdefault((role, offset), []).append(stream[:, position])
    assert max(offset for _, offset in alone) > 1
    for (role, offset), streams in alone.items():
        torch.testing.assert_close(
            statistics.mean[role][:, offset], torch.stack(streams).mean(0), rtol=1e-3, atol=1e-4
        )


def test_statistics_are_taken_once_where_they_are_asked_for(tiny_model, pool, captures):
    statistics = StreamStatistics(
        adapt(tiny_model("llama")), reference_rows(pool, 0), "resid_pre", 0, batch_size=5
    )
    assert captures == []
    assert statistics.mean is statistics.mean
    assert captures == [5, 5, 2]
    assert statistics.std is statistics.std
    assert captures == [5, 5, 2] * 2


@pytest.mark.parametrize(("rule", "runs"), [("zero", 0), ("mean", 1), ("noise", 1)])
def test_a_sweep_takes_the_statistics_that_its_rule_reads(tiny_model, captures, rule, runs):
    al.swap_sweep(tiny_model("llama"), capitals(3), donors=rule, layers=(0,), progress=False)
    assert captures.count(len(capitals().pool)) == runs
    assert (
        rule == "noise" or len(captures) == runs
    )  # noise is added to a batch's own streams, so these are captured too


@pytest.mark.parametrize("other", OTHER_DEFAULTS.values(), ids=OTHER_DEFAULTS)
@pytest.mark.parametrize("rule", ["zero", "mean", "noise"])
def test_torch_defaults_change_no_number(tiny_model, rule, other):
    options = {"donors": rule, "layers": (0, 2), "progress": False, "n_spot_checks": 0}
    wanted = al.swap_sweep(tiny_model("llama"), capitals(3), **options)
    with other():
        found = al.swap_sweep(tiny_model("llama"), capitals(3), **options)
    torch.testing.assert_close(found.delta_p, wanted.delta_p, rtol=0, atol=0, equal_nan=True)
    assert bool(found.delta_p.nan_to_num().any())
