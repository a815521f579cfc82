"""Whether the network may be used at all."""

import os


def offline() -> bool:
    """Whether ``HF_HUB_OFFLINE`` (or transformers' older name for it) forbids the network."""
    truthy = {"1", "on", "yes", "true"}
    return any(os.environ.get(name, "").strip().lower() in truthy for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"))
