"""The cells that are compared: made once with anchorlens, written as plain positions and token ids, given to every engine."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import anchorlens as al
from anchorlens.models.checkpoint import DEMO, packaged_directory
from anchorlens.protocols.swap.pairing import Pair, PairMaker
from anchorlens.questions.donors import DonorPicker
from anchorlens.questions.prompts import FewShotPrompt, make_prompt
from anchorlens.questions.tokenised import make_rows
from anchorlens.questions.tokens import RowTokenizer

ANCHORS = ("question", "answer_site")
PROMPTS = ("qa", "fewshot(5)")
SIZES = (1, 16)
ANCHOR_SETS = {"question": ("question",), "answer_site": ("answer_site",), "both": ANCHORS}
DATA = "popqa-sample"


@dataclass(frozen=True)
class Case:
    """One row of the benchmark.

    Attributes:
        prompt: As :func:`anchorlens.swap_sweep` takes it.
        anchors: A key of :data:`ANCHOR_SETS`.
        examples: Number of examples, each with one donor.
    """

    prompt: str
    anchors: str
    examples: int

    @property
    def name(self) -> str:
        """``qa/both/16``."""
        return f"{self.prompt}/{self.anchors}/{self.examples}"


CASES = tuple(Case(prompt, anchors, size) for prompt in PROMPTS for anchors in ANCHOR_SETS for size in SIZES)


def model_directory() -> Path:
    """The packaged model as a Hugging Face directory."""
    return packaged_directory(DEMO)


def model_config() -> dict[str, int]:
    """Its ``config.json``."""
    return json.loads((model_directory() / "config.json").read_text())


def write_jobs(cases: Sequence[Case], folder: Path, seed: int = 0) -> dict[str, Path]:
    """One job file for each case.

    All anchors of a prompt are measured on the same examples: donors are picked that can be paired at every anchor.

    Returns:
        Case name -> file.
    """
    from transformers import AutoTokenizer

    directory, config = model_directory(), model_config()
    tokenizer = AutoTokenizer.from_pretrained(directory)
    data = al.load_qa(DATA, seed=seed)
    files: dict[str, Path] = {}
    for prompt in dict.fromkeys(case.prompt for case in cases):
        most = max(*SIZES, *(case.examples for case in cases))
        pairs = _pairs(tokenizer, data, prompt, seed, most)
        for case in (case for case in cases if case.prompt == prompt):
            job = {
                "model_dir": str(directory),
                "layers": list(range(config["num_hidden_layers"])),
                "anchors": list(ANCHOR_SETS[case.anchors]),
                "rows": [_row(pair, ANCHOR_SETS[case.anchors]) for pair in pairs[: case.examples]],
            }
            files[case.name] = folder / f"{case.name.replace('/', '-')}.json"
            files[case.name].write_text(json.dumps(job))
    return files


def _pairs(tokenizer: object, data: al.QAData, prompt: str, seed: int, most: int) -> tuple[Pair, ...]:
    made = make_prompt(prompt, data.examples, data.pool, seed)
    rows_of = RowTokenizer(tokenizer, made)
    shots = made.shot_ids if isinstance(made, FewShotPrompt) else frozenset()
    pool = make_rows((e for e in data.pool if e.question_id not in shots), rows_of).rows
    rows = make_rows((e for e in data.examples if e.question_id not in shots), rows_of).rows
    picker = DonorPicker(pool, "same_relation", ANCHORS, "equal", 1, seed)
    maker = PairMaker(anchors=ANCHORS, direction="noising", align="equal", null_donors=0, seed=seed, tokenizer=rows_of)
    pairs = maker.with_donors(rows, picker).pairs
    if len(pairs) < most:
        raise SystemExit(f"{data.name} gives {len(pairs)} rows with a donor, {most} are needed.")
    # The file is sorted by relation: neighbours would be one kind of question with prompts of one length.
    return pairs[:: len(pairs) // most]


def _row(pair: Pair, anchors: Sequence[str]) -> dict[str, object]:
    """Both inputs end at the last position that matters: nobody has to compute tokens that no number depends on."""
    assert pair.source is not None
    places = {place.anchor: place for place in pair.placements if place.anchor in anchors}
    answer = pair.base.positions["answer"][0]
    return {
        "ids": list(pair.target.ids[:answer]),
        "donor_ids": list(pair.source.ids[: 1 + max(p for place in places.values() for p in place.source)]),
        "target": {anchor: list(place.target) for anchor, place in places.items()},
        "source": {anchor: list(place.source) for anchor, place in places.items()},
        "read": answer - 1,
        "token": pair.base.ids[answer],
    }
