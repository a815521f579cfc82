"""Qwen3-8B beside Qwen3-32B on PopQA, TriviaQA, HotpotQA and NQ: swaps, or with ``--protocol knockout`` the published figure.

``python examples/figure_qwen3.py --small`` runs the same code on the demo model and the embedded samples. The full figure needs
an accelerator that holds the larger checkpoint: two bytes for each of its 32 billion parameters in bfloat16, and room to work.
"""

from target_figure import main

MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B")

if __name__ == "__main__":
    main(MODELS, "runs/figure-qwen3")
