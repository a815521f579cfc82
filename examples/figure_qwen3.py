"""Curves of Qwen3-8B beside Qwen3-32B on PopQA, TriviaQA, HotpotQA and NQ.

``python examples/figure_qwen3.py --estimate`` says what it takes on the card at hand: the 32 billion parameters of the larger one
are 65 GB in bfloat16, and are streamed where they do not fit. ``--small`` runs the same code on the demo model and the embedded
samples.
"""

from target_figure import main

MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B")

if __name__ == "__main__":
    main(MODELS, "runs/figure-qwen3")
