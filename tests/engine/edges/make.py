"""Edges of small models, and their values by the engine and by hooks."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from anchorlens.engine.cone import ConeEngine
from anchorlens.engine.edges.changed_inputs import EdgePrompts
from anchorlens.engine.edges.exact import edge_values
from anchorlens.engine.edges.graph import Edge, Graph
from anchorlens.engine.edges.hooked_edges import ReferenceEdges
from anchorlens.engine.readouts import LOGIT_DIFF, LogitDiffReader
from anchorlens.models.load import adapt
from anchorlens.protocols.edges.edge_inputs import graph_of

LENGTH = 14


@dataclass
class Case:
    """Two random prompts that differ at positions 4 and 6, and a logit difference at the end."""

    model: object
    seed: int = 0
    length: int = LENGTH

    def __post_init__(self):
        self.adapter = adapt(self.model)
        self.graph: Graph = graph_of(self.adapter)
        rng = random.Random(self.seed)
        size = min(400, self.adapter.shape.d_vocab)
        target = [rng.randrange(5, size) for _ in range(self.length)]
        source = list(target)
        for position in (4, 6):
            source[position] = rng.randrange(5, size)
        at = tuple(range(4, self.length))
        self.prompts = EdgePrompts(target=tuple(target), source=tuple(source), at=at, by=at)
        tokens = torch.tensor([[rng.randrange(5, size), rng.randrange(5, size)]])
        self.reader = LogitDiffReader(torch.tensor([self.length - 1]), tokens)

    @property
    def edges(self) -> tuple[Edge, ...]:
        return self.graph.edges(self.graph.senders, self.graph.receivers)

    def draw(self, n: int) -> list[Edge]:
        """Random edges, with receivers of every kind."""
        rng = random.Random(self.seed)
        by_kind: dict[str, list[Edge]] = {}
        for edge in self.edges:
            by_kind.setdefault(edge.receiver.kind, []).append(edge)
        drawn = [rng.choice(own) for own in by_kind.values()]
        rest = [edge for edge in self.edges if edge not in drawn]
        return drawn + rng.sample(rest, min(len(rest), n - len(drawn)))

    def exact(self, edges: Sequence[Edge], **how: str) -> tuple[float, dict[Edge, float]]:
        engine = ConeEngine(self.adapter)
        return edge_values(engine, self.prompts, self.reader, edges, metric=LOGIT_DIFF, **how)

    def by_hooks(self, edges: Sequence[Edge], **how: str) -> tuple[float, dict[Edge, float]]:
        reference = ReferenceEdges(
            self.adapter, self.prompts, self.reader, metric=LOGIT_DIFF, **how
        )
        return reference.before(), {edge: reference.value(edge) for edge in edges}


def largest_gap(case: Case, edges: Sequence[Edge], **how: str) -> float:
    """Largest difference of the engine from hooks, as a share of the range of the metric: over the
    edges and the two prompts' own runs.
    """
    before, found = case.exact(edges, **how)
    by_hooks, wanted = case.by_hooks(edges, **how)
    own = case.prompts
    case.prompts = replace(own, target=own.source, source=own.target)
    of_source, _ = case.by_hooks([])
    case.prompts = own
    values = [by_hooks, of_source, *wanted.values()]
    scale = max(values) - min(values)
    gaps = [abs(found[edge] - wanted[edge]) for edge in edges]
    return max(abs(before - by_hooks), *gaps) / scale
