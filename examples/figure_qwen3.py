"""Draw the curves of Qwen3-8B and Qwen3-32B on PopQA, TriviaQA, HotpotQA and NQ.

``python examples/figure_qwen3.py --estimate`` prints memory, disk space and time. The 32 billion
parameters of the larger model are 65 GB in bfloat16; if they do not fit, the weights are streamed
layer by layer. ``--small`` runs the same code on the demo model and the embedded samples.
"""

from target_figure import main

MODELS = ("Qwen/Qwen3-8B", "Qwen/Qwen3-32B")

if __name__ == "__main__":
    main(MODELS, "runs/figure-qwen3")
