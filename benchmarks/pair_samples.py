"""Write the three samples of prompt pairs (``--write``), and print the logit differences of a model
on them as a table.

Each sample has 50 groups of two pairs. Facts and induction: both directions of one couple of
prompts. Indirect objects: the two orders of one couple of names.
"""

import argparse
import csv
import json
import random
from collections.abc import Iterator
from pathlib import Path

import torch

import anchorlens as al
from anchorlens.models.load import adapt
from anchorlens.prompts.pair_samples import PAIR_SAMPLES
from anchorlens.prompts.tokenize_pairs import set_up_pairs
from anchorlens.protocols.patch.spec import Patch

FOLDER = Path(__file__).resolve().parents[1] / "anchorlens" / "prompts" / "samples"
HEAD = (
    "sample",
    "pairs",
    "equal length",
    "clean > 0",
    "corrupted < clean",
    "corrupted < 0",
    "mean clean",
    "mean corrupted",
    "answer is first",
)
COLUMNS = ("id", "group", "clean", "corrupted", "answer", "wrong", "segments")
Row = dict[str, str]

# Relation -> sentence, and facts in the order in which they are coupled: the first with the second,
# the third with the fourth, ...
FACTS = {
    "capital": (
        "The capital of {} is",
        (
            "France Paris, Italy Rome, Japan Tokyo, Russia Moscow, Spain Madrid, Germany Berlin,"
            " China Beijing, Egypt Cairo, Canada Ottawa, Cuba Havana, Iran Tehran, Greece Athens,"
            " Peru Lima, Austria Vienna, Ireland Dublin, Kenya Nairobi, Iraq Baghdad, Poland"
            " Warsaw, Hungary Budapest, Portugal Lisbon, Norway Oslo, Sweden Stockholm, Denmark"
            " Copenhagen, Finland Helsinki, Syria Damascus, Afghanistan Kabul, Chile Santiago,"
            " Belgium Brussels, Scotland Edinburgh, England London, Wales Cardiff, Bulgaria Sofia,"
            " Australia Canberra, Jamaica Kingston, Tunisia Tunis, Switzerland Bern"
        ),
    ),
    "city": (
        "The city of {} is located in the country of",
        (
            "Lyon France, Milan Italy, Barcelona Spain, Munich Germany, Shanghai China, Mumbai"
            " India, Toronto Canada, Sydney Australia, Manchester England, Kyoto Japan, Naples"
            " Italy, Hamburg Germany, Venice Italy, Zurich Switzerland, Melbourne Australia,"
            " Montreal Canada, Frankfurt Germany, Glasgow Scotland, Istanbul Turkey, Geneva"
            " Switzerland"
        ),
    ),
    "symbol": (
        "The chemical symbol for {} is",
        (
            "gold Au, silver Ag, iron Fe, copper Cu, tin Sn, zinc Zn, sodium Na, potassium K,"
            " oxygen O, hydrogen H, helium He, neon Ne, carbon C, nitrogen N, calcium Ca, magnesium"
            " Mg, mercury Hg, nickel Ni, chlorine Cl, iodine I, lithium Li, silicon Si, sulfur S,"
            " uranium U"
        ),
    ),
    "opposite": (
        "The opposite of {} is",
        (
            "hot cold, black white, up down, left right, good bad, big small, high low, open"
            " closed, fast slow, rich poor, wet dry, hard soft, true false, inside outside, north"
            " south, east west, thick thin, strong weak, war peace, life death"
        ),
    ),
}
NAMES = (
    "Mary John Tom Sarah James Anna Paul Emma David Alice Peter Laura Simon Kate Daniel Susan"
    " Robert Lisa Michael Jane"
)
# {0} {1}: both names; {2}: the one who gives.
GIVING = (
    "When {0} and {1} went to the store, {2} gave a drink to",
    "After {0} and {1} met at the station, {2} handed a ticket to",
    "While {0} and {1} were cooking dinner, {2} passed the salt to",
    "Because {0} and {1} liked the garden, {2} offered some flowers to",
    "Before {0} and {1} left the office, {2} sent a message to",
    "Once {0} and {1} came home from school, {2} read a story to",
    "Since {0} and {1} worked at the farm, {2} brought a basket to",
    "As {0} and {1} shared a room, {2} lent the key to",
    "When {0} and {1} walked along the beach, {2} showed a shell to",
    "Although {0} and {1} were late for the concert, {2} bought a ticket for",
)
WORDS = (
    "apple river stone cloud table horse window garden bread silver paper mountain candle bridge"
    " orange doctor guitar island winter pencil basket tiger mirror forest shirt engine castle"
    " lemon pocket rabbit market ocean hammer village blanket ladder museum coffee turtle wagon"
    " planet feather button desert"
)


def pair(
    group: str,
    number: int,
    clean: str,
    corrupted: str,
    answers: tuple[str, str],
    **segments: object,
) -> Row:
    """Return a row; answers get their leading space."""
    cells = (
        f"{group}-{number}",
        group,
        clean,
        corrupted,
        f" {answers[0]}",
        f" {answers[1]}",
        json.dumps(segments),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def facts() -> Iterator[Row]:
    """Yield facts: the subjects of a couple are exchanged."""
    for relation, (sentence, text) in FACTS.items():
        known = [one.rsplit(" ", 1) for one in text.split(", ")]
        for couple in zip(known[::2], known[1::2], strict=True):
            group = f"{relation}-{couple[0][0]}-{couple[1][0]}"
            for number, ((one, answer), (other, wrong)) in enumerate(
                (couple, couple[::-1]), start=1
            ):
                yield pair(
                    group,
                    number,
                    sentence.format(one),
                    sentence.format(other),
                    (answer, wrong),
                    subject=[one, other],
                )


def indirect_objects() -> Iterator[Row]:
    """Yield indirect objects: the corrupted prompt repeats the other name."""
    all_names = NAMES.split()
    n = len(all_names)
    for i in range(50):
        sentence, giver, receiver = (
            GIVING[i % len(GIVING)],
            all_names[i % n],
            all_names[(i + 1 + 2 * (i // n)) % n],
        )
        for number, names in enumerate(((receiver, giver), (giver, receiver)), start=1):
            prompts = [sentence.format(*names, who) for who in (giver, receiver)]
            segments = {"names": " and ".join(names), "subject": [f", {giver}", f", {receiver}"]}
            yield pair(
                f"{i % len(GIVING)}-{giver}-{receiver}",
                number,
                *prompts,
                (receiver, giver),
                **segments,
            )


def induction() -> Iterator[Row]:
    """Yield repeated words: the word to be copied is exchanged with a later one, so that both
    prompts have the same words.
    """
    for i in range(50):
        draw = random.Random(i)
        words = draw.sample(WORDS.split(), draw.randint(7, 10))
        at = draw.randint(3, len(words) - 2)
        to = draw.randint(at + 1, len(words) - 1)
        changed = list(words)
        changed[at], changed[to] = words[to], words[at]
        for number, lists in enumerate(((words, changed), (changed, words)), start=1):
            prompts = [f"List: {' '.join([*own, *own[:at]])}" for own in lists]
            answers = lists[0][at], lists[1][at]
            yield pair(
                f"{i:02d}",
                number,
                *prompts,
                answers,
                copied=list(answers),
                exchanged=list(answers[::-1]),
            )


MAKERS = {"facts-pairs": facts, "ioi-pairs": indirect_objects, "induction-pairs": induction}


def write() -> None:
    """Write the samples."""
    for name, make in MAKERS.items():
        with (FOLDER / f"{name}.csv").open("w", encoding="utf8", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(make())


@torch.no_grad()
def logit_differences(model: object, name: str) -> torch.Tensor:
    """Return logit difference of the clean and of the corrupted prompt, and the rank of the answer,
    [pair 3].
    """
    adapter = adapt(model)
    context = set_up_pairs(adapter, al.load_pairs(name), Patch())
    assert not context.dropped and all(
        len(one.answer) == len(one.wrong) == 1 for one in context.pairs
    )
    found = []
    for one in context.pairs:
        clean, corrupted = (
            model(torch.tensor([prompt.ids]))[0, -1] for prompt in (one.clean, one.corrupted)
        )
        values = [
            float(logits[one.answer[0]] - logits[one.wrong[0]]) for logits in (clean, corrupted)
        ]
        found.append([*values, float((clean > clean[one.answer[0]]).sum())])
    return torch.tensor(found)


def main() -> None:
    """Print one line per sample."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--write", action="store_true", help="write the samples first")
    options = parser.parse_args()
    if options.write:
        write()
    model = al.load_model(options.model, device="cpu")
    print(f"{options.model}, logits\n")
    print("| " + " | ".join(HEAD) + " |\n" + "| --- " * len(HEAD) + "|")
    for name in PAIR_SAMPLES:
        context = set_up_pairs(adapt(model), al.load_pairs(name), Patch())
        equal = sum(len(one.clean.ids) == len(one.corrupted.ids) for one in context.pairs)
        clean, corrupted, rank = logit_differences(model, name).T
        shares = [clean > 0, corrupted < clean, corrupted < 0]
        cells = [name, len(clean), equal, *(f"{float(one.float().mean()):.2f}" for one in shares)]
        cells += [
            f"{float(clean.mean()):+.2f}",
            f"{float(corrupted.mean()):+.2f}",
            f"{float((rank == 0).float().mean()):.2f}",
        ]
        print("| " + " | ".join(map(str, cells)) + " |")


if __name__ == "__main__":
    main()
