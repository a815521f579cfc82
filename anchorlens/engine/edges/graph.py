"""The graph of a model: senders that add to the residual stream, and receivers that read it.

Senders are the embedding, attention heads and MLPs. Receivers are the queries, keys and values of
heads, the MLPs and the logits. An edge connects a sender to a receiver that reads the stream behind
it (METHOD 4b). Under grouped queries a key or value belongs to a group of query heads and has the
number of its key/value head.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import cache, cached_property
from typing import TYPE_CHECKING, NamedTuple

from anchorlens.constants import ALL_PLACES
from anchorlens.errors import InputError

if TYPE_CHECKING:
    from jaxtyping import Bool
    from torch import Tensor

EMBED = "embed"
HEAD = "head"
MLP = "mlp"
LOGITS = "logits"
ATTENTION_INPUTS = ("q", "k", "v")
ARROW = " -> "
AT = " @ "
"""Between the name of an edge and that of its place."""

_NAME = re.compile(r"a(?P<layer>\d+)\.h(?P<head>\d+)(?:\.(?P<input>[qkv]))?$|m(?P<mlp>\d+)$")
# Words that stand for several nodes, and the patterns of their names.
_GROUPS = {
    "all": ("*",),
    "heads": ("a*",),
    "mlps": ("m*",),
    "q": ("*.q",),
    "k": ("*.k",),
    "v": ("*.v",),
}


class Node(NamedTuple):
    """Sender or receiver.

    Attributes:
        kind: ``embed``, ``head`` or ``mlp`` of a sender; ``q``, ``k``, ``v``, ``mlp`` or ``logits``
            of a receiver.
        layer: Layer; 0 for the embedding, the number of layers for the logits.
        head: Head, or key/value head for ``k`` and ``v``; -1 for other kinds.
    """

    kind: str
    layer: int
    head: int = -1

    @property
    def name(self) -> str:
        """Name in outputs: ``embed``, ``a5.h3``, ``m4``, ``a9.h1.q``, ``logits``."""
        return _node_name(self)


class Edge(NamedTuple):
    """Edge of the graph: what ``sender`` adds to the stream, as ``receiver`` reads it.

    Attributes:
        sender: Node whose contribution is read.
        receiver: Node that reads it.
        place: Positions of a pair at which it is read: ``all``, the name of a segment, or
            ``pos:5``.
    """

    sender: Node
    receiver: Node
    place: str = ALL_PLACES

    @property
    def name(self) -> str:
        """Name in outputs: ``a5.h3 -> a9.h1.q``; at a place, ``a5.h3 -> a9.h1.q @ subject``."""
        name = f"{self.sender.name}{ARROW}{self.receiver.name}"
        return name if self.place == ALL_PLACES else f"{name}{AT}{self.place}"


@dataclass(frozen=True)
class Graph:
    """Nodes and edges of a model.

    Attributes:
        n_layers: Number of layers.
        n_heads: Number of query heads of a layer.
        n_kv_heads: Number of key/value heads of a layer.
        has_mlps: Whether blocks have an MLP.
        parallel: Whether attention and MLP of a block both read the stream before it.

    Examples:
        >>> graph = Graph(n_layers=2, n_heads=2, n_kv_heads=1)
        >>> len(graph.senders), len(graph.receivers)
        (7, 11)
        >>> graph.edge("a0.h1 -> a1.h0.q").receiver
        Node(kind='q', layer=1, head=0)
    """

    n_layers: int
    n_heads: int
    n_kv_heads: int
    has_mlps: bool = True
    parallel: bool = False

    def describe(self) -> str:
        """Return the size of the model in words.

        >>> Graph(n_layers=2, n_heads=4, n_kv_heads=2).describe()
        '2 layers, 4 heads and 2 key/value heads'
        """
        heads = f"{self.n_heads} heads and {self.n_kv_heads} key/value heads"
        without = "" if self.has_mlps else ", without MLPs"
        parallel = ", parallel attention and MLP" if self.parallel else ""
        return f"{self.n_layers} layers, {heads}{without}{parallel}"

    @property
    def senders(self) -> tuple[Node, ...]:
        """Senders of the model, in order of computation."""
        out = [Node(EMBED, 0)]
        for layer in range(self.n_layers):
            out += [Node(HEAD, layer, head) for head in range(self.n_heads)]
            out += [Node(MLP, layer)] if self.has_mlps else []
        return tuple(out)

    @property
    def receivers(self) -> tuple[Node, ...]:
        """Receivers of the model, in order of computation."""
        out: list[Node] = []
        for layer in range(self.n_layers):
            out += [Node("q", layer, head) for head in range(self.n_heads)]
            for kind in ("k", "v"):
                out += [Node(kind, layer, head) for head in range(self.n_kv_heads)]
            out += [Node(MLP, layer)] if self.has_mlps else []
        return (*out, Node(LOGITS, self.n_layers))

    def is_edge(self, sender: Node, receiver: Node) -> bool:
        """Return whether a receiver reads the stream behind a sender."""
        if sender.kind == EMBED or receiver.kind == LOGITS:
            return True
        in_same_block = receiver.kind == MLP and sender.kind == HEAD and not self.parallel
        return sender.layer < receiver.layer or (in_same_block and sender.layer == receiver.layer)

    def edges(
        self,
        senders: Iterable[Node],
        receivers: Iterable[Node],
        places: Sequence[str] = (ALL_PLACES,),
    ) -> tuple[Edge, ...]:
        """Return the edges between some nodes, in order of the places and receivers."""
        some = tuple(senders)
        ends = tuple(receivers)
        out: list[Edge] = []
        for place in places:
            for receiver in ends:
                own = [sender for sender in some if self.is_edge(sender, receiver)]
                out += [Edge(sender, receiver, place) for sender in own]
        return tuple(out)

    def edge(self, name: str) -> Edge:
        """Return the edge of a name.

        Raises:
            InputError: If the model has no edge of this name.
        """
        parts = [part.strip() for part in name.split("->")]
        if len(parts) == 2:
            sender = self._by_name[0].get(parts[0])
            receiver = self._by_name[1].get(parts[1])
            if sender and receiver and self.is_edge(sender, receiver):
                return Edge(sender, receiver)
        raise InputError(
            f"edge={name!r}: not in this model, which has {self.n_layers} layers, {self.n_heads}"
            f" heads and {self.n_kv_heads} key/value heads. Write it as 'a5.h3 -> a9.h1.q', with a"
            " sender in a lower layer.",
            argument="edges",
        )

    @cached_property
    def sender_numbers(self) -> Mapping[tuple[str, int], slice]:
        """Kind and layer -> numbers of these senders in :attr:`senders`."""
        return _number(self.senders)

    @cached_property
    def receiver_numbers(self) -> Mapping[tuple[str, int], slice]:
        """Kind and layer -> numbers of these receivers in :attr:`receivers`."""
        return _number(self.receivers)

    def masks(
        self, circuits: Sequence[Collection[Edge]], places: Sequence[str] = (ALL_PLACES,)
    ) -> "Bool[Tensor, 'circuit place receiver sender']":
        """Return whether each edge is in each circuit, in the order of places and nodes."""
        import torch

        place_of = {place: number for number, place in enumerate(places)}
        receiver_of = {node: number for number, node in enumerate(self.receivers)}
        sender_of = {node: number for number, node in enumerate(self.senders)}
        shape = len(circuits), len(place_of), len(receiver_of), len(sender_of)
        out = torch.zeros(shape, dtype=torch.bool, device="cpu")
        for mask, edges in zip(out, circuits, strict=True):
            at: list[tuple[int, int, int]] = []
            for edge in edges:
                place = place_of[edge.place]
                receiver = receiver_of[edge.receiver]
                sender = sender_of[edge.sender]
                at.append((place, receiver, sender))
            if at:
                mask[tuple(torch.tensor(at, device="cpu").T)] = True
        return out

    @cached_property
    def _by_name(self) -> tuple[dict[str, Node], dict[str, Node]]:
        """Name -> sender, and name -> receiver."""
        return (
            {node.name: node for node in self.senders},
            {node.name: node for node in self.receivers},
        )

    def choose(self, wanted: Sequence[str], argument: str) -> tuple[Node, ...]:
        """Return the senders or receivers that names or patterns stand for.

        Args:
            wanted: Names (``a5.h3``, ``m4``), patterns (``a5.*``, ``*.q``) or the words ``all``,
                ``heads``, ``mlps``, ``q``, ``k``, ``v``.
            argument: ``senders`` or ``receivers``.

        Raises:
            InputError: If a name stands for no node.
        """
        nodes = self.senders if argument == "senders" else self.receivers
        names = [node.name for node in nodes]
        chosen: set[str] = set()
        for one in wanted:
            patterns = _GROUPS.get(one, (one,))
            found: set[str] = set()
            for pattern in patterns:
                found |= {name for name in names if fnmatchcase(name, pattern)}
            if not found:
                near = get_close_matches(one, [*_GROUPS, *names], n=2)
                hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
                raise InputError(
                    f"{argument}={one!r}: no {argument[:-1]} of this model.{hint}"
                    f" {argument.title()} are written {names[1]}, {names[-2]} or {names[-1]};"
                    " patterns such as 'a5.*' stand for several.",
                    argument=argument,
                )
            chosen |= found
        return tuple(node for node in nodes if node.name in chosen)


def _number(nodes: Sequence[Node]) -> dict[tuple[str, int], slice]:
    """Return kind and layer -> numbers; nodes of one kind in one layer follow each other."""
    found: dict[tuple[str, int], slice] = {}
    for number, node in enumerate(nodes):
        key = node.kind, node.layer
        start = found[key].start if key in found else number
        found[key] = slice(start, number + 1)
    return found


@cache  # a sweep over all edges names each node a thousand times per pair
def _node_name(node: Node) -> str:
    if node.kind in (EMBED, LOGITS):
        return node.kind
    if node.kind == MLP:
        return f"m{node.layer}"
    name = f"a{node.layer}.h{node.head}"
    return name if node.kind == HEAD else f"{name}.{node.kind}"


def parse_node(name: str) -> Node | None:
    """Return the node of a name; None if it is not written as one.

    >>> parse_node("a9.h1.q")
    Node(kind='q', layer=9, head=1)
    """
    if name == EMBED:
        return Node(EMBED, 0)
    found = _NAME.match(name)
    if found is None:
        return None
    if found["mlp"] is not None:
        return Node(MLP, int(found["mlp"]))
    return Node(found["input"] or HEAD, int(found["layer"]), int(found["head"]))
