"""Mean, zero and noise in place of a donor's stream."""

import pytest
import torch

from anchorlens.models.adapter import Adapter
from anchorlens.protocols.swap.statistic_donors import StreamStatistics
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokenised import make_rows
from anchorlens.questions.tokens import RowTokenizer
from tests.questions.make import capitals


def test_noise_has_the_streams_own_spread_and_three_times_the_embeddings_at_layer_0(tiny_model):
    model = tiny_model("llama")
    pool = make_rows(capitals().pool, RowTokenizer(model.tokenizer, QAPrompt())).rows
    statistics = StreamStatistics(Adapter(model), pool, "resid_pre", 0, batch_size=5)
    streams, embeddings = [], []
    for row in pool:
        ids = torch.tensor([row.ids])
        _, cache = model.run_with_cache(ids, prepend_bos=False)
        streams.append(torch.stack([cache[f"blocks.{i}.hook_resid_pre"][0, 1 : row.prompt_length] for i in range(3)]))
        embeddings.append(model.embed.W_E[ids[0]])
    wanted = torch.cat(streams, 1).flatten(1).std(-1, unbiased=False)
    torch.testing.assert_close(statistics.std, wanted, rtol=1e-3, atol=1e-4)
    assert statistics.embedding_std == pytest.approx(float(torch.cat(embeddings).detach().std()), rel=1e-3)
