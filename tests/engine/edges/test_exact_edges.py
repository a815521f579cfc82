"""Exact edges equal hooks and full forward passes."""

from dataclasses import replace

import pytest
import torch

from anchorlens.engine.edges import changed_inputs
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.readouts import LogitDiffReader
from anchorlens.errors import InputError
from tests.engine.edges.make import Case, largest_gap
from tests.tiers import choose_cases

FAMILIES = ("llama", "gpt2", "gemma2", "gemma3", "olmo2", "neox", "qwen3", "mistral")
WAYS = [(between, behind) for between in ("direct", "mlps") for behind in ("flow", "freeze")]


@pytest.mark.sampled(7)
@pytest.mark.slow
@pytest.mark.parametrize(
    "family", choose_cases(("llama", "gemma2", "neox"), FAMILIES, slow=("olmo2", "qwen3"))
)
@pytest.mark.parametrize(("between", "downstream"), WAYS)
def test_edges_of_every_kind_equal_hooks(tiny_model, family, between, downstream):
    case = Case(tiny_model(family))
    edges = case.draw(16)
    assert {edge.receiver.kind for edge in edges} == {"q", "k", "v", "mlp", "logits"}
    assert largest_gap(case, edges, between=between, downstream=downstream) < 1e-4


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", choose_cases((), FAMILIES, slow=("qwen3",)))
def test_many_edges_in_both_directions(tiny_model, family):
    case = Case(tiny_model(family), seed=1)
    for turned in (False, True):
        if turned:
            prompts = case.prompts
            case.prompts = replace(prompts, target=prompts.source, source=prompts.target)
        assert largest_gap(case, case.draw(300)) < 1e-4


@pytest.mark.parametrize("n_edges", choose_cases((), (5, 38), slow=(5,)))
def test_edges_of_the_real_model(smollm2, n_edges):
    """Indirect objects: the clean and the corrupted run differ by several logits. ``n_edges`` of
    each way, in both directions.
    """
    case = Case(smollm2, seed=2)
    ids = []
    for giver in ("Daniel", "Maria"):
        text = f"After the storm, Maria and Daniel walked home, and {giver} handed a lantern to"
        ids.append(tuple(smollm2.to_tokens(text, prepend_bos=False)[0].tolist()))
    source, target = ids
    first = next(i for i, (a, b) in enumerate(zip(source, target, strict=True)) if a != b)
    at = tuple(range(first, len(target)))
    case.prompts = EdgePrompts(target=target, source=source, at=at, by=at)
    tokens = [smollm2.to_single_token(name) for name in (" Maria", " Daniel")]
    case.reader = LogitDiffReader(torch.tensor([len(target) - 1]), torch.tensor([tokens]))
    prompts = case.prompts
    turned = replace(prompts, target=prompts.source, source=prompts.target)
    for case.prompts in (prompts, turned) if n_edges > 5 else (prompts,):
        for case.seed, (between, downstream) in enumerate(WAYS):
            edges = case.draw(n_edges)
            assert largest_gap(case, edges, between=between, downstream=downstream) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", choose_cases(("llama",), ("llama", "gemma2", "gpt2", "qwen3"), slow=("gemma2",))
)
def test_in_bfloat16_effects_are_about_as_near_to_float32_as_those_of_hooks(tiny, family):
    """Effects of 160 edges of eight pairs, beside float32: median and 95th percentile."""
    from anchorlens.models.load import load_model

    models = [load_model(str(tiny(family)), dtype=dtype) for dtype in ("bfloat16", "float32")]
    own, hooks = [], []
    for seed in range(8):
        half, exact = (Case(model, seed) for model in models)
        edges = half.draw(20)
        before, values = exact.exact(edges)
        wanted = torch.tensor([values[edge] - before for edge in edges])
        for gaps, (start, found) in ((own, half.exact(edges)), (hooks, half.by_hooks(edges))):
            gaps.append((torch.tensor([found[edge] - start for edge in edges]) - wanted).abs())
    for share in (0.5, 0.95):
        # Metrics before and after come from passes of different kernels: up to 1.42 measured.
        limit = 1.6 * torch.cat(hooks).quantile(share)
        assert torch.cat(own).quantile(share) <= limit


def test_a_wrong_change_is_seen(tiny_model, monkeypatch):
    """The comparison with hooks can fail: the change of a head is that of its neighbour."""
    case = Case(tiny_model("llama"))
    right = changed_inputs._Deltas.add_heads

    def wrong(self, block, theirs, own):
        right(self, block, replace(theirs, z=theirs.z.roll(1, 1)), own)

    edges = [edge for edge in case.edges if edge.sender.kind == "head"][:8]
    monkeypatch.setattr(changed_inputs._Deltas, "add_heads", wrong)
    assert largest_gap(case, edges) > 1e-2


def test_the_sum_of_all_contributions_is_the_change_of_the_stream(tiny_model):
    """Also where a norm follows attention, whose output is shared by its heads."""
    from anchorlens.engine.edges.attribution import contributions
    from anchorlens.engine.edges.row_states import embed_row, run_layers

    for family in ("llama", "gemma2", "olmo2", "gpt2"):
        case = Case(tiny_model(family))
        changes = contributions(case.adapter, case.prompts, set(case.graph.senders))
        finals = []
        for ids in (case.prompts.source, case.prompts.target):
            with torch.no_grad():
                *_, (_, last) = run_layers(case.adapter, embed_row(case.adapter, ids))
            finals.append(last.post[list(case.prompts.at)])
        difference = finals[0] - finals[1]
        assert torch.allclose(sum(changes.values()), difference, atol=1e-4), family


def test_a_graph_has_the_edges_that_exist(tiny_model):
    sequential = Case(tiny_model("llama")).graph
    parallel = Case(tiny_model("neox")).graph
    assert not sequential.parallel and parallel.parallel
    inside = "a1.h0 -> m1"
    assert sequential.edge(inside).name == inside
    with pytest.raises(InputError, match="not in this model"):
        parallel.edge(inside)
    # Layer 0 reads the embedding alone; the MLP of layer 0 reads its heads too.
    first = [edge.name for edge in sequential.edges(sequential.senders, sequential.receivers)]
    assert [name for name in first if name.endswith("-> a0.h0.q")] == ["embed -> a0.h0.q"]
    assert len([name for name in first if name.endswith("-> m0")]) == 1 + sequential.n_heads
    n_senders = 1 + sequential.n_layers * (sequential.n_heads + 1)
    assert len([name for name in first if name.endswith("-> logits")]) == n_senders


@pytest.mark.parametrize("name", ["a9.h0 -> logits", "m1 -> a1.h0.q", "a0.h0", "x -> logits", ""])
def test_an_edge_that_the_model_lacks_is_an_error(tiny_model, name):
    with pytest.raises(InputError, match=r"a5\.h3 -> a9\.h1\.q"):
        Case(tiny_model("llama")).graph.edge(name)


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        (["a1.*"], ["a1.h0", "a1.h1", "a1.h2", "a1.h3"]),
        (["mlps", "embed"], ["embed", "m0", "m1", "m2"]),
        (["a0.h3", "m2"], ["a0.h3", "m2"]),
    ],
)
def test_senders_by_names_patterns_and_words(tiny_model, wanted, names):
    graph = Case(tiny_model("llama")).graph
    assert [node.name for node in graph.choose(wanted, "senders")] == names


def test_under_grouped_queries_keys_have_the_number_of_their_own_head(tiny_model):
    graph = Case(tiny_model("llama")).graph
    keys = [node.name for node in graph.choose(["*.k"], "receivers") if node.layer == 1]
    assert keys == ["a1.h0.k", "a1.h1.k"]
    with pytest.raises(InputError, match="a1.h3.k"):
        graph.choose(["a1.h3.k"], "receivers")
