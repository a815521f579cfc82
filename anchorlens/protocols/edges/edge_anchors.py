"""Names of the cells of an edge sweep: an edge, and the place of the exchanged contributions."""

from anchorlens.constants import ALL_PLACES as ALL
from anchorlens.engine.edges.graph import ARROW, AT


def join_anchor(edge: str, place: str) -> str:
    """Return the anchor of an edge at a place.

    >>> join_anchor("a5.h3 -> a9.h1.q", "subject"), join_anchor("m4 -> logits", "all")
    ('a5.h3 -> a9.h1.q @ subject', 'm4 -> logits')
    """
    return edge if place == ALL else f"{edge}{AT}{place}"


def split_anchor(anchor: str) -> tuple[str, str]:
    """Return the names of edge and place of an anchor."""
    edge, _, place = anchor.partition(AT)
    return edge, place or ALL


def split_edge(edge: str) -> tuple[str, str]:
    """Return the names of sender and receiver of an edge."""
    sender, _, receiver = edge.partition(ARROW)
    return sender, receiver
