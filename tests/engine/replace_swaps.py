"""Replace the swaps of the cone engine, batch by batch, whether they run together or not."""

from anchorlens.engine.cone import ConeEngine

_ORIGINAL = ConeEngine.run_swap_batches


def right_swaps(engine, batch, *, layers, **options):
    """Run the original swaps of one batch."""
    return _ORIGINAL(engine, [(batch, layers)], **options)[0]


def replace_swaps(monkeypatch, run):
    """Let ``run(engine, batch, layers=..., site=..., window=..., on_progress=...)`` give the
    result of each batch.
    """

    def run_all(engine, batches, **options):
        return [run(engine, batch, layers=layers, **options) for batch, layers in batches]

    monkeypatch.setattr(ConeEngine, "run_swap_batches", run_all)
