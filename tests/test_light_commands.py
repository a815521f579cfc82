"""Commands that only read a run import no torch, no transformers, no transformer_lens and no
scikit-learn.
"""

import subprocess
import sys

import pytest

import anchorlens as al
from tests.questions.make import capitals

pytestmark = pytest.mark.filterwarnings("ignore:Few rows")
SMALL = {"layers": [0, 2], "n_resamples": 20, "progress": False}
SCRIPT = """
import sys

HEAVY = {"torch", "transformers", "transformer_lens", "sklearn", "ray", "datasets"}

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in HEAVY:
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Blocked())
import anchorlens as al
from anchorlens.cli.entry import main

swap, knockout, folder = sys.argv[1:]
for command in (
    ["report", swap, knockout, "--out", f"{folder}/report.html"], ["figure", swap, knockout, "--out", f"{folder}/figure.html"],
    ["status", swap], ["verify", swap, "--cells", "0"], ["verify", knockout, "--cells", "0"],
):
    try:
        main(command)
    except SystemExit as stopped:
        assert not stopped.code, command
assert al.verify_run(swap, cells=0).ok
print(al.compare(swap, swap))
for (result,) in (al.load_run(swap), al.load_run(knockout)):
    print(result.summary(), result.findings.to_frame(), result.samples_with_inputs(), result.plot_example(0))
"""


@pytest.mark.slow
def test_commands_that_read_a_run_import_no_torch(tiny_model, tmp_path):
    swap = al.swap_sweep(tiny_model("llama"), capitals(), align="last", n_donors=2, **SMALL)
    knockout = al.knockout_sweep(
        tiny_model("llama"), al.load_qa("popqa-sample", limit=45), n_splits=1, **SMALL
    )
    runs = swap.save(tmp_path / "swap"), knockout.save(tmp_path / "knockout")
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, *map(str, runs), str(tmp_path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "report.html").stat().st_size > 1e6
    assert (tmp_path / "figure.html").is_file()
