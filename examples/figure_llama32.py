"""Llama-3.2-1B beside Llama-3.2-3B on PopQA, TriviaQA, HotpotQA and NQ: swaps, or with ``--protocol knockout`` the published figure.

``python examples/figure_llama32.py --small`` runs the same code on the demo model and the embedded samples. The full figure needs
both checkpoints, which are gated: accept their terms on the hub and set HF_TOKEN, or have them in the hub's cache.
"""

from target_figure import main

MODELS = ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B")

if __name__ == "__main__":
    main(MODELS, "runs/figure-llama32")
