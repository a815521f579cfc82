"""Draw the curves of Llama-3.2-1B and Llama-3.2-3B on PopQA, TriviaQA, HotpotQA and NQ.

``python examples/figure_llama32.py --estimate`` prints memory, disk space and time. Both
checkpoints are gated: accept their terms on the hub and set HF_TOKEN. ``--small`` runs the same
code on the demo model and the embedded samples.
"""

from target_figure import main

MODELS = ("meta-llama/Llama-3.2-1B", "meta-llama/Llama-3.2-3B")

if __name__ == "__main__":
    main(MODELS, "runs/figure-llama32")
