"""Small transformers with weights written by hand, in which the score of every edge is known.

No norms, one-hot embeddings, and features that lie along axes of the residual stream. Each circuit
has a pair of prompts; the metric is the logit difference at the last position. A feature has one
value in the run of the target (``start``) and one in that of the source (``end``), so the exact
effect of an edge is a difference of a formula between the two, and the attribution score a slope
times ``end - start``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformer_lens import HookedTransformer, HookedTransformerConfig
from transformers import PreTrainedTokenizerFast

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.edges.attribution import attribution_scores
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.exact import edge_values
from anchorlens.engine.edges.graph import Edge
from anchorlens.engine.readouts import LOGIT_DIFF, LogitDiffReader
from anchorlens.models.adapter import Adapter
from anchorlens.models.load import adapt
from anchorlens.protocols.edges.edge_inputs import graph_of

Scores = Mapping[str, float]
"""Name of an edge -> its score. Edges that are not named have a score of 0."""

# Attention score of a head that looks at one position: the others get e^-60 of its weight.
SHARP = 60.0
# Attention score of the heads whose softmax enters the formulas.
BETA = 6.0
# Fraction of its input below which a neuron is silent.
THRESHOLD = 0.25
STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Circuit:
    """A planted circuit with a pair of prompts and the scores that follow from its formulas.

    Attributes:
        name: Name, with the direction of the exchange.
        model: The model.
        target: Token ids of the prompt whose run is changed.
        source: Token ids of the prompt whose contributions are taken.
        answer: Token of the answer.
        wrong: Token of the wrong answer.
        noising: Whether the target is the clean prompt.
        exact: Effects with everything behind the receiver recomputed.
        frozen: Effects with everything behind the receiver frozen.
        by_mlps: Effects with the MLPs between sender and receiver recomputed.
        attribution: Scores by the gradient of the target's run (EAP).
        integrated: Number of steps -> scores by the gradient averaged over interpolated embeddings
            (EAP-IG).
    """

    name: str
    model: HookedTransformer
    target: tuple[int, ...]
    source: tuple[int, ...]
    answer: int
    wrong: int
    noising: bool
    exact: Scores
    frozen: Scores
    by_mlps: Scores
    attribution: Scores
    integrated: Callable[[int], Scores]

    @property
    def prompts(self) -> EdgePrompts:
        """Target and source, with the contributions of all positions exchanged."""
        at = tuple(range(len(self.target)))
        return EdgePrompts(target=self.target, source=self.source, at=at, by=at)

    @property
    def reader(self) -> LogitDiffReader:
        """Reader of the logit difference at the last position."""
        last = torch.tensor([len(self.target) - 1])
        return LogitDiffReader(last, torch.tensor([[self.answer, self.wrong]]))

    @property
    def pair(self) -> dict[str, object]:
        """The pair as a row of ``al.load_pairs``."""
        clean, corrupted = (self.target, self.source)[:: 1 if self.noising else -1]
        return {
            "clean": list(clean),
            "corrupted": list(corrupted),
            "answer": [self.answer],
            "wrong": [self.wrong],
        }


@dataclass
class _Axes:
    """Axis of each named feature of the residual stream."""

    names: Sequence[str]
    number: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.number = {name: i for i, name in enumerate(self.names)}

    def __getitem__(self, name: str) -> int:
        return self.number[name]


def _build(
    words: Sequence[str],
    features: Sequence[str],
    n_positions: int,
    *,
    n_layers: int,
    d_mlp: int = 0,
    n_kv_heads: int | None = None,
) -> tuple[HookedTransformer, _Axes]:
    """Return a model without norms whose weights are 0 but for one-hot embeddings of words and
    positions, and the axes ``word``, ``@position`` and ``features``.
    """
    axes = _Axes([*words, *(f"@{i}" for i in range(n_positions)), *features])
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    config = HookedTransformerConfig(
        n_layers=n_layers,
        d_model=len(axes.names),
        n_ctx=n_positions,
        n_heads=2,
        n_key_value_heads=n_kv_heads,
        d_head=max(len(words), n_positions),
        d_mlp=d_mlp or None,
        d_vocab=len(words),
        act_fn="relu",
        attn_only=not d_mlp,
        normalization_type=None,
        use_attn_scale=False,
        device="cpu",
        seed=0,
    )
    special = words[0]
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=special,
        eos_token=special,
        pad_token=special,
        unk_token=special,
    )
    with torch.random.fork_rng(devices=[]):
        model = HookedTransformer(config, move_to_device=False)
    # TransformerLens would load the tokenizer again, from a path that it does not have.
    model.tokenizer = fast
    for parameter in model.parameters():
        parameter.requires_grad_(False).zero_()
    for token, word in enumerate(words):
        model.embed.W_E[token, axes[word]] = 1.0
    for position in range(n_positions):
        model.pos_embed.W_pos[position, axes[f"@{position}"]] = 1.0
    return model.eval(), axes


def _inward(model: HookedTransformer, layer: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the weights of queries, keys and values of a layer; keys and values of grouped queries
    once, not for each query head.
    """
    attn = model.blocks[layer].attn
    names = ("W_Q", "_W_K", "_W_V") if model.cfg.n_key_value_heads else ("W_Q", "W_K", "W_V")
    q, k, v = (attn.get_parameter(name) for name in names)
    return q, k, v


def _look_at(
    model: HookedTransformer, axes: _Axes, layer: int, head: int, keys: Sequence[int]
) -> None:
    """Make a head attend from each position to one key position."""
    q, k, _ = _inward(model, layer)
    for query, key in enumerate(keys):
        q[head, axes[f"@{query}"], key] = SHARP
        k[head, axes[f"@{key}"], key] = 1.0


def _copy(
    model: HookedTransformer, axes: _Axes, layer: int, head: int, features: Mapping[str, str]
) -> None:
    """Make a head copy features of the key position to other features of the query position."""
    _, _, v = _inward(model, layer)
    outward = model.blocks[layer].attn.get_parameter("W_O")
    for slot, (read, written) in enumerate(features.items()):
        v[head, axes[read], slot] = 1.0
        outward[head, slot, axes[written]] = 1.0


def _add_neuron(
    model: HookedTransformer,
    axes: _Axes,
    layer: int,
    neuron: int,
    *,
    reads: Sequence[str],
    writes: str,
    threshold: float,
    gain: float,
) -> None:
    """Add ``gain * relu(sum of features - threshold)`` to a feature."""
    mlp = model.blocks[layer].mlp
    for name in reads:
        mlp.get_parameter("W_in")[axes[name], neuron] = 1.0
    mlp.get_parameter("b_in")[neuron] = -threshold
    mlp.get_parameter("W_out")[neuron, axes[writes]] = gain


def _unembed(model: HookedTransformer, axes: _Axes, logits: Mapping[str, int]) -> None:
    """Make features the logits of tokens."""
    for name, token in logits.items():
        model.unembed.W_U[axes[name], token] = 1.0


def _shares(start: float, end: float, steps: int) -> list[float]:
    """Return the values of a feature in the interpolated runs; 0 steps: in the target's run."""
    if not steps:
        return [start]
    return [start + (end - start) * step / steps for step in range(1, steps + 1)]


def _mean(function: Callable[[float], float], values: Sequence[float]) -> float:
    return math.fsum(map(function, values)) / len(values)


def induction(*, noising: bool, grouped: bool = False) -> Circuit:
    """Plant a previous-token head that an induction head reads through its keys.

    ``BOS A B D A`` -> ``B``; the corrupted prompt has ``C`` in place of the first ``A``. Head 0 of
    layer 0 writes the token before each position. The key of head 0 of layer 1 is that token, its
    query the current one: at the last position it has the score BETA at ``B`` and 0 elsewhere.
    Where queries are ``grouped``, heads 0 and 1 of layer 1 share keys and values, and write half of
    the token each.
    """
    words = ["BOS", "A", "B", "C", "D"]
    features = [f"{kind} {word}" for kind in ("previous", "out") for word in words]
    model, axes = _build(words, features, 5, n_layers=2, n_kv_heads=1 if grouped else None)
    _look_at(model, axes, 0, 0, [0, 0, 1, 2, 3])
    _copy(model, axes, 0, 0, {word: f"previous {word}" for word in words})
    heads = range(2 if grouped else 1)
    q, k, _ = _inward(model, 1)
    for slot, word in enumerate(words):
        q[: len(heads), axes[word], slot] = BETA
        k[0, axes[f"previous {word}"], slot] = 1.0
    _copy(model, axes, 1, 0, {word: f"out {word}" for word in words})
    outward = model.blocks[1].attn.get_parameter("W_O")
    outward[: len(heads)] = outward[0] / len(heads)
    _unembed(model, axes, {f"out {word}": token for token, word in enumerate(words)})
    start, end = (1.0, 0.0) if noising else (0.0, 1.0)

    # Logit of B minus that of C with the share `key` of A in what the keys read, and `value` in
    # what the values read.
    def metric(key: float, value: float) -> float:
        return (math.exp(BETA * key) - (1 - value)) / (math.exp(BETA * key) + 4)

    def slope(share: float) -> float:
        on_b = math.exp(BETA * share) / (math.exp(BETA * share) + 4)
        on_c = 1 / (math.exp(BETA * share) + 4)
        return BETA * on_b * (1 - on_b + (1 - share) * on_c)

    before = metric(start, start)
    by_key = metric(end, start) - before
    direct = {
        "a0.h0 -> a1.h0.k": by_key,
        "embed -> a1.h0.v": metric(start, end) - before,
    }
    for head in heads:
        direct[f"a1.h{head} -> logits"] = (metric(end, end) - before) / len(heads)

    def scores(steps: int) -> Scores:
        shares = _shares(start, end, steps)
        through_key = (end - start) * _mean(slope, shares)
        return direct | {
            "embed -> a0.h0.v": through_key,
            "a0.h0 -> a1.h0.k": through_key,
            "embed -> a1.h0.v": (end - start)
            * _mean(lambda s: 1 / (math.exp(BETA * s) + 4), shares),
        }

    clean, corrupted = (0, 1, 2, 4, 1), (0, 3, 2, 4, 1)
    exact = {"embed -> a0.h0.v": by_key, **direct}
    return Circuit(
        name=f"induction{', grouped' if grouped else ''}, {'noising' if noising else 'denoising'}",
        model=model,
        target=clean if noising else corrupted,
        source=corrupted if noising else clean,
        answer=2,
        wrong=3,
        noising=noising,
        exact=exact,
        frozen=direct,
        by_mlps=exact,
        attribution=scores(0),
        integrated=scores,
    )


def two_hops() -> Circuit:
    """Plant a fact in two hops: subject -> bridge -> object.

    The MLP of layer 0 looks up the bridge of the subject, head 0 of layer 1 moves it to the last
    position, and the MLP of layer 1 looks up the object. A neuron is silent up to THRESHOLD of its
    feature and gives 1 for the whole of it.
    """
    words = ["BOS", "S1", "S2", "R", "O1", "O2"]
    kinds = ("bridge", "moved", "out")
    features = [f"{kind} {n}" for kind in kinds for n in (1, 2)]
    model, axes = _build(words, features, 3, n_layers=2, d_mlp=2)
    gain = 1 / (1 - THRESHOLD)
    for neuron, n in enumerate((1, 2)):
        for layer, (read, written) in enumerate(
            [(f"S{n}", f"bridge {n}"), (f"moved {n}", f"out {n}")]
        ):
            _add_neuron(
                model,
                axes,
                layer,
                neuron,
                reads=[read],
                writes=written,
                threshold=THRESHOLD,
                gain=gain,
            )
    _look_at(model, axes, 1, 0, [0, 1, 1])
    _copy(model, axes, 1, 0, {f"bridge {n}": f"moved {n}" for n in (1, 2)})
    _unembed(model, axes, {"out 1": 4, "out 2": 5})

    def lookup(x: float) -> float:
        return gain * max(0.0, x - THRESHOLD)

    def slope(x: float) -> float:
        return gain if x > THRESHOLD else 0.0

    # The new fact is gained and the old one lost; each is 1 in the logit difference.
    chain = ["embed -> m0", "m0 -> a1.h0.v", "a1.h0 -> m1", "m1 -> logits"]

    def scores(steps: int) -> Scores:
        gained = _shares(0.0, 1.0, steps)
        lost = [1 - share for share in gained]
        second = sum(_mean(lambda s: slope(lookup(s)), each) for each in (gained, lost))
        both = sum(_mean(lambda s: slope(lookup(s)) * slope(s), each) for each in (gained, lost))
        return dict(zip(chain, [both, second, second, 2.0], strict=True))

    exact = dict.fromkeys(chain, 2.0)
    return Circuit(
        name="two hops",
        model=model,
        target=(0, 2, 3),
        source=(0, 1, 3),
        answer=4,
        wrong=5,
        noising=False,
        exact=exact,
        frozen=dict.fromkeys(chain[2:], 2.0),
        by_mlps=exact | {"embed -> a1.h0.v": 2.0, "a1.h0 -> logits": 2.0},
        attribution=scores(0),
        integrated=scores,
    )


def gate(kind: str, *, noising: bool) -> Circuit:
    """Plant a pair of heads of which one is enough (``or``), or both are needed (``and``).

    ``BOS A A Q`` -> ``yes``; the corrupted prompt is ``BOS C C Q``. Head 0 of layer 0 reads the
    first ``A``, head 1 the second. With n of them, the MLP adds 0, 1, 1 (``or``) or 0, 0, 1
    (``and``) for n = 0, 1, 2, and is flat around each of these but for ``and`` at 2.
    """
    model, axes = _build(
        ["BOS", "A", "C", "Q", "yes", "no"], ["first", "second", "out"], 4, n_layers=1, d_mlp=2
    )
    for head, feature in enumerate(("first", "second")):
        _look_at(model, axes, 0, head, [0, 1, 1 + head, 1 + head])
        _copy(model, axes, 0, head, {"A": feature})
    gain = 1 / (1 - THRESHOLD)
    # Threshold and gain of each neuron.
    neurons = {
        "or": [(THRESHOLD, gain), (1.0, -gain)],
        "and": [(1 + THRESHOLD, gain)],
    }[kind]
    for neuron, (threshold, own) in enumerate(neurons):
        _add_neuron(
            model,
            axes,
            0,
            neuron,
            reads=["first", "second"],
            writes="out",
            threshold=threshold,
            gain=own,
        )
    _unembed(model, axes, {"out": 4})

    def output(n: float) -> float:
        return sum(own * max(0.0, n - threshold) for threshold, own in neurons)

    def slope(n: float) -> float:
        return sum(own for threshold, own in neurons if n > threshold)

    start, end = (2.0, 0.0) if noising else (0.0, 2.0)
    change = (end - start) / 2
    one = output(start + change) - output(start)
    first = [f"embed -> a0.h{head}.v" for head in range(2)]
    second = [f"a0.h{head} -> m0" for head in range(2)]
    last = {"m0 -> logits": output(end) - output(start)}

    def scores(steps: int) -> Scores:
        each = change * _mean(slope, _shares(start, end, steps))
        return dict.fromkeys(first + second, each) | last

    clean, corrupted = (0, 1, 1, 3), (0, 2, 2, 3)
    exact = dict.fromkeys(first + second, one) | last
    return Circuit(
        name=f"{kind}, {'noising' if noising else 'denoising'}",
        model=model,
        target=clean if noising else corrupted,
        source=corrupted if noising else clean,
        answer=4,
        wrong=5,
        noising=noising,
        exact=exact,
        frozen=dict.fromkeys(second, one) | last,
        by_mlps=exact | {f"a0.h{head} -> logits": one for head in range(2)},
        attribution=scores(0),
        integrated=scores,
    )


def backup(*, noising: bool) -> Circuit:
    """Plant a head that another one backs up.

    ``BOS A Q`` -> ``yes``; the corrupted prompt is ``BOS C Q``. Head 0 of layer 0 writes the
    answer. Head 0 of layer 1 writes it too, with its attention to ``A``: score -BETA if the answer
    is in its query's input, BETA if not, 0 at the two other positions.
    """
    model, axes = _build(["BOS", "A", "C", "Q", "yes", "no"], ["out"], 3, n_layers=2)
    _look_at(model, axes, 0, 0, [0, 1, 1])
    for layer in range(2):
        _copy(model, axes, layer, 0, {"A": "out"})
    q, k, _ = _inward(model, 1)
    q[0, axes["@2"], 0] = BETA
    q[0, axes["out"], 0] = -2 * BETA
    k[0, axes["@1"], 0] = 1.0
    _unembed(model, axes, {"out": 4})

    def weight(primary: float) -> float:
        score = math.exp(BETA * (1 - 2 * primary))
        return score / (score + 2)

    def slope(primary: float) -> float:
        return -2 * BETA * weight(primary) * (1 - weight(primary))

    start, end = (1.0, 0.0) if noising else (0.0, 1.0)
    change = end - start
    by_query = start * (weight(end) - weight(start))
    direct = {
        "a0.h0 -> logits": change,
        "a0.h0 -> a1.h0.q": by_query,
        "embed -> a1.h0.v": change * weight(start),
        "a1.h0 -> logits": end * weight(end) - start * weight(start),
    }

    def scores(steps: int) -> Scores:
        shares = _shares(start, end, steps)
        own = change * _mean(lambda s: s * slope(s), shares)
        return direct | {
            "embed -> a0.h0.v": change + own,
            "a0.h0 -> a1.h0.q": own,
            "embed -> a1.h0.v": change * _mean(weight, shares),
        }

    clean, corrupted = (0, 1, 3), (0, 2, 3)
    exact = {"embed -> a0.h0.v": change + by_query, **direct}
    return Circuit(
        name=f"backup, {'noising' if noising else 'denoising'}",
        model=model,
        target=clean if noising else corrupted,
        source=corrupted if noising else clean,
        answer=4,
        wrong=5,
        noising=noising,
        exact=exact,
        frozen={"embed -> a0.h0.v": change, **direct},
        by_mlps=exact,
        attribution=scores(0),
        integrated=scores,
    )


def hidden(*, noise: float = 0.0) -> Circuit:
    """Plant effects that have no gradient: a saturated head, and a pair of heads that cancel.

    ``BOS A Q`` -> ``yes``; the corrupted prompt is ``BOS C Q``. Head 0 of layer 0 writes whether it
    sees ``A``. The query of head 0 of layer 3 reads this: its attention is all on other positions
    without it, and all on the second one with it, where it copies the answer. Heads 0 and 1 of
    layer 1 write 1 and -1 if they see ``A``, and the MLP of layer 1 adds the answer where the sum
    is not 0: each edge alone has an effect of 1, both have none.

    Args:
        noise: Standard deviation of normal numbers that are added to all weights. The formulas are
            those without noise.
    """
    words = ["BOS", "A", "C", "Q", "yes", "no"]
    model, axes = _build(words, ["seen", "sum", "out"], 3, n_layers=5, d_mlp=4)
    _look_at(model, axes, 0, 0, [0, 1, 1])
    _copy(model, axes, 0, 0, {"A": "seen"})
    for head in range(2):
        _look_at(model, axes, 1, head, [0, 1, 1])
        _copy(model, axes, 1, head, {"A": "sum"})
    model.blocks[1].attn.get_parameter("W_O")[1] *= -1
    mlp = model.blocks[1].mlp
    for neuron, sign in enumerate((1.0, -1.0)):
        _add_neuron(
            model,
            axes,
            1,
            neuron,
            reads=["sum"],
            writes="out",
            threshold=THRESHOLD,
            gain=1 / (1 - THRESHOLD),
        )
        mlp.get_parameter("W_in")[:, neuron] *= sign
    q, k, _ = _inward(model, 3)
    q[0, axes["@2"], 0] = -SHARP / 2
    q[0, axes["seen"], 0] = SHARP
    k[0, axes["@1"], 0] = 1.0
    _copy(model, axes, 3, 0, {"@1": "out"})
    _unembed(model, axes, {"out": 4})
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter += noise * torch.randn(parameter.shape, generator=generator)
    last = {"a3.h0 -> logits": 1.0}
    chain = ["embed -> a0.h0.v", "a0.h0 -> a3.h0.q"]
    pair = [f"embed -> a1.h{head}.v" for head in range(2)]
    pair += [f"a1.h{head} -> m1" for head in range(2)]
    exact = dict.fromkeys(chain + pair, 1.0) | last

    def slope(seen: float) -> float:
        weight = 1 / (1 + 2 * math.exp(SHARP * (0.5 - seen)))
        return SHARP * weight * (1 - weight)

    def scores(steps: int) -> Scores:
        return dict.fromkeys(chain, _mean(slope, _shares(0.0, 1.0, steps))) | last

    return Circuit(
        name="hidden, denoising",
        model=model,
        target=(0, 2, 3),
        source=(0, 1, 3),
        answer=4,
        wrong=5,
        noising=False,
        exact=exact,
        frozen=last,
        by_mlps=exact,
        attribution=scores(0),
        integrated=scores,
    )


CIRCUITS: Mapping[str, Callable[[], Circuit]] = {
    "induction, denoising": lambda: induction(noising=False),
    "induction, noising": lambda: induction(noising=True),
    "induction, grouped, denoising": lambda: induction(noising=False, grouped=True),
    "induction, grouped, noising": lambda: induction(noising=True, grouped=True),
    "two hops": two_hops,
    "or, denoising": lambda: gate("or", noising=False),
    "or, noising": lambda: gate("or", noising=True),
    "and, denoising": lambda: gate("and", noising=False),
    "and, noising": lambda: gate("and", noising=True),
    "backup, denoising": lambda: backup(noising=False),
    "backup, noising": lambda: backup(noising=True),
}
"""Name -> function that makes the circuit."""


def edges_of(adapter: Adapter) -> tuple[Edge, ...]:
    """Return all edges of a model."""
    graph = graph_of(adapter)
    return graph.edges(graph.senders, graph.receivers)


def measure_exact(
    circuit: Circuit, *, between: str = "direct", downstream: str = "flow"
) -> dict[str, float]:
    """Return the exact effect of every edge, by its name."""
    adapter = adapt(circuit.model)
    before, values = edge_values(
        ConeEngine(adapter),
        circuit.prompts,
        circuit.reader,
        edges_of(adapter),
        metric=LOGIT_DIFF,
        between=between,
        downstream=downstream,
    )
    return {edge.name: value - before for edge, value in values.items()}


def measure_attribution(circuit: Circuit, *, steps: int = 0) -> dict[str, float]:
    """Return the attribution score of every edge, by its name; ``steps``: number of interpolated
    runs, 0 for none.
    """
    adapter = adapt(circuit.model)

    def metric(stream: Float[Tensor, "pos d_model"]) -> Float[Tensor, ""]:
        logits = adapter.read.logits(stream[-1:])[0]
        return logits[circuit.answer] - logits[circuit.wrong]

    edges = edges_of(adapter)
    scores = attribution_scores(adapter, circuit.prompts, metric, edges, steps=steps)
    return {edge.name: score for edge, score in scores.items()}
