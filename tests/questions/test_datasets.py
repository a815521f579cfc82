"""Loading: all sources give the same rows, draws are reproducible, dropped rows are counted."""

import json
import re
import subprocess
import sys
from pathlib import Path

import datasets
import pandas
import pytest

from anchorlens.errors import DownloadError, InputError, SpanError
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.questions.datasets import known_datasets, load_qa
from anchorlens.questions.example import Span, question_id
from anchorlens.questions.schemas import read_answers
from anchorlens.questions.spans.accuracy import ACCURACY
from tests.questions.make import refused
from tests.questions.tables import HUB_ROWS, OWN, spans_of, write
from tests.questions.test_spans import assert_lawful

WH = {"who", "whom", "whose", "what", "which", "when", "where", "why", "how"}


@pytest.fixture
def hub(monkeypatch):
    """Replace the hub by the rows of a set and return its calls; ``script`` adds a loading
    script.
    """

    def serve(name: str, script: bool = False) -> list[tuple]:
        calls = []

        def load_dataset(repo, config=None, *, split=None, revision=None, data_files=None):
            calls.append((repo, config, split, revision, data_files))
            if script and data_files is None:
                raise RuntimeError(
                    "Dataset scripts are no longer supported, but found hotpot_qa.py"
                )
            return datasets.Dataset.from_list(HUB_ROWS[name])

        monkeypatch.setattr(datasets, "load_dataset", load_dataset)
        return calls

    return serve


@pytest.mark.parametrize(
    ("name", "call", "spans", "known", "example_id"),
    [
        (
            "popqa",
            ("akariasai/PopQA", None, "test"),
            ("Ada Lovelace", "occupation", "annotation"),
            (("poet", "poetess"), "other", "occupation", 142.0),
            "4222362",
        ),
        (
            "triviaqa",
            ("mandarjoshi/trivia_qa", "unfiltered.nocontext", "validation"),
            ("Emma", "wrote", "rules"),
            (("Jane Austen", "J. Austen"), "person", None, None),
            "tc_2",
        ),
        (
            "hotpotqa",
            ("hotpotqa/hotpot_qa", "distractor", "validation"),
            ("Russia or Belgium", "larger", "rules"),
            (("Russia",), "other", None, None),
            "5a8b",
        ),
        (
            "nq",
            ("google-research-datasets/nq_open", None, "validation"),
            ("titanic", "sink", "rules"),
            (("1912", "April 1912"), "year", None, None),
            r"000000-[0-9a-f]{8}",
        ),
    ],
)
def test_hub_rows_of_the_full_schema(hub, name, call, spans, known, example_id):
    calls = hub(name)
    data = load_qa(name)
    (example,) = data.examples
    assert calls == [(*call, None, None)]
    assert data.source == f"hub:{call[0]}[{':'.join(filter(None, call[1:]))}]"
    assert spans_of(data) == [spans]
    assert (example.answers, example.answer_type, example.relation, example.popularity) == known
    assert example.dataset == data.name == name
    assert example.question_id == question_id(example.question)
    assert re.fullmatch(example_id, example.example_id)


def test_hub_arguments_reach_the_hub(hub):
    calls = hub("nq")
    data = load_qa("nq", config="nq_open", split="train", revision="abc")
    assert calls == [("google-research-datasets/nq_open", "nq_open", "train", "abc", None)]
    assert data.source == "hub:google-research-datasets/nq_open[nq_open:train@abc]"


def test_a_repository_with_a_script_is_read_from_its_parquet_files(hub):
    calls = hub("hotpotqa", script=True)
    assert len(load_qa("hotpotqa")) == 1
    files = "hf://datasets/hotpotqa/hotpot_qa@refs/convert/parquet/distractor/validation/*.parquet"
    assert [(call[0], call[4]) for call in calls] == [
        ("hotpotqa/hotpot_qa", None),
        ("parquet", {"validation": files}),
    ]


@pytest.mark.parametrize(
    ("error", "kind", "message", "argument"),
    [
        (
            ConnectionError("Couldn't reach 'akariasai/PopQA'"),
            DownloadError,
            "akariasai/PopQA could not be loaded from the hub",
            "",
        ),
        (
            datasets.exceptions.DatasetNotFoundError("gone"),
            DownloadError,
            "local file of the same schema",
            "",
        ),
        (
            ValueError("Couldn't find cache for akariasai/PopQA"),
            DownloadError,
            "akariasai/PopQA is not in the local cache",
            "",
        ),
        (
            ValueError('Unknown split "x"'),
            InputError,
            "cannot be loaded with config=None, split='test': Unknown split",
            "split",
        ),
        (
            ValueError("BuilderConfig 'x' not found"),
            InputError,
            "cannot be loaded with config=None",
            "config",
        ),
    ],
)
def test_hub_failures_have_a_fix(monkeypatch, error, kind, message, argument):
    def load_dataset(*args, **kwargs):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with refused(kind, message, argument):
        load_qa("popqa")


def exit_code(code: str, **env: str) -> int:
    """Run Python code in a new process and return its exit code."""
    env |= {"PATH": "", "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run([sys.executable, "-c", code], env=env, check=False).returncode


@pytest.mark.slow
def test_offline_is_respected(tmp_path):
    code = (
        "from anchorlens.questions.datasets import load_qa\nfrom anchorlens.errors import"
        " DownloadError\ntry:\n    load_qa('nq')\nexcept DownloadError as error:\n    raise"
        " SystemExit('OfflineModeIsEnabled' not in str(error))"
    )
    assert exit_code(code, HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)) == 0


OWN_SPANS = [
    ("Emma", "wrote", "rules"),
    ("Peru", "capital", "annotation"),
    ("Ulm", "is", "annotation"),
]


@pytest.mark.parametrize("extension", ["jsonl", "json", "csv", "tsv", "parquet"])
def test_files_of_every_kind_give_the_same_examples(tmp_path, extension):
    data = load_qa("mine", path=write(tmp_path / f"own.{extension}", OWN))
    expected = load_qa(pandas.DataFrame(OWN), dataset_name="mine")
    assert data.examples == expected.examples == data.pool
    assert spans_of(data) == OWN_SPANS
    assert data.source == f"file:own.{extension}"
    assert [e.answers for e in data.examples] == [
        ("Jane Austen", "Austen"),
        ("Lima",),
        ("Germany, mostly",),
    ]
    assert [e.example_id for e in data.examples] == ["a", "b", "c"]
    assert (data.examples[0].relation, data.examples[0].popularity) == ("author", 12.5)
    assert (data.examples[1].relation, data.examples[1].popularity) == (None, None)


def test_tables_and_their_names():
    frame = pandas.DataFrame(OWN)
    assert load_qa(frame).source == load_qa(frame).name == "frame"
    data = load_qa(datasets.Dataset.from_pandas(frame), dataset_name="mine")
    assert (data.source, data.name) == ("dataset", "mine")
    popqa = load_qa(pandas.DataFrame(HUB_ROWS["popqa"]), dataset_name="popqa")
    assert spans_of(popqa) == [("Ada Lovelace", "occupation", "annotation")]


@pytest.mark.parametrize(
    ("value", "answers"),
    [
        ("Lima", ("Lima",)),
        ('["Lima", "Ciudad"]', ("Lima", "Ciudad")),
        ("['Lima', \"L'ma\"]", ("Lima", "L'ma")),
        ("[sic] Lima", ("[sic] Lima",)),
        (1984, ("1984",)),
        (1984.0, ("1984",)),
        (["Lima", " Lima ", "", None], ("Lima",)),
        ({"value": "A", "aliases": None}, ("A",)),
        (None, ()),
        ("  ", ()),
    ],
)
def test_answers_in_every_form(value, answers):
    assert read_answers(value) == answers


def test_question_white_space_moves_annotated_offsets():
    row = {
        "question": "  Who wrote Emma? ",
        "answer": "Jane",
        "subject_span": [12, 16],
        "property_span": [6, 11],
    }
    assert spans_of(load_qa([row])) == [("Emma", "wrote", "annotation")]
    assert load_qa([row]).examples[0].question == "Who wrote Emma?"


EMMA = {"question": "Who wrote Emma?", "answers": "Austen"}


def many(n: int) -> list[dict]:
    return [
        {
            "question": f"Who wrote Book{i}?" if i % 3 else "",
            "answer": f"Author {i}" if i % 5 else "",
        }
        for i in range(n)
    ]


def test_draw_is_seeded_ordered_and_counts_what_it_drops():
    frame = pandas.DataFrame(many(60))
    whole = load_qa(frame)
    rows_ok = [i for i in range(60) if i % 3 and i % 5]
    assert [int(e.example_id[:6]) for e in whole.examples] == rows_ok
    assert whole.pool_dropped == whole.dropped_counts == {"empty_question": 20, "no_answer": 8}
    draw = load_qa(frame, limit=30, seed=4)
    assert len(draw.examples) + len(draw.dropped) == 30
    assert draw == load_qa(frame, limit=30, seed=4)
    assert draw.examples != load_qa(frame, limit=30, seed=5).examples
    ids = [e.example_id for e in draw.examples]
    assert ids == sorted(ids)
    assert draw.pool == whole.pool
    assert set(draw.examples) <= set(whole.pool)
    assert draw.pool_dropped == whole.pool_dropped
    assert load_qa(frame, limit=1_000).examples == whole.examples


def test_dropped_rows_are_listed_with_reason():
    dropped = [
        ("empty_question", "", "x"),
        ("no_answer", "Who wrote Emma?", ""),
        ("no_property", "What is a ganglion?", "a knot"),
        ("no_subject", "Who is he?", "him"),
    ]
    data = load_qa(
        [*({"question": question, "answer": answer} for _, question, answer in dropped), EMMA]
    )
    assert [(row.reason, row.question, row.answer) for row in data.dropped] == dropped
    assert len(data) == 1


def test_ids_are_stable_and_unique():
    rows = [
        {"question": "who wrote emma", "answer": ["a"]},
        {"question": "who wrote emma", "answer": ["a"]},
    ]
    first, second = load_qa(pandas.DataFrame(rows), dataset_name="nq").examples
    assert first.example_id != second.example_id
    assert first.example_id[7:] == second.example_id[7:]
    assert first.question_id == second.question_id
    repeated = pandas.DataFrame([{**HUB_ROWS["hotpotqa"][0], "id": "x"}] * 2)
    assert [e.example_id[:6] for e in load_qa(repeated, dataset_name="hotpotqa").examples] == [
        "000000",
        "000001",
    ]


def test_hash_is_of_the_raw_rows():
    frame = pandas.DataFrame(many(5))
    assert load_qa(frame).sha256 == load_qa(frame, limit=2, seed=9, spans="rules").sha256
    changed = frame.copy()
    changed.loc[0, "answer"] = "other"
    assert load_qa(changed).sha256 != load_qa(frame).sha256
    assert load_qa(frame[["answer", "question"]]).sha256 == load_qa(frame).sha256


def test_a_callable_extractor_serves_load_qa():
    def ends(question: str) -> tuple[Span, Span] | None:
        return (Span(0, 1), Span(len(question) - 1, len(question)))

    data = load_qa(pandas.DataFrame(OWN), spans=ends)
    assert spans_of(data) == [("W", "?", "callable:ends")] * 3
    with refused(SpanError, "frame, row 1: property span [3, 30] lies outside"):
        load_qa(pandas.DataFrame(OWN), spans=lambda _: (Span(0, 1), Span(3, 30)))


TWICE = {"question": "Is New York in New York State?", "answers": "yes"}


@pytest.mark.parametrize(
    ("bad", "detail"),
    [
        (
            {**TWICE, "subject": "New York", "property": "State"},
            "list, row 2: subject 'New York' occurs 2 times in the question",
        ),
        (
            {**TWICE, "subject_span": [3]},
            "list, row 2: subject_span must be [first character, one past the last], got [3].",
        ),
        (
            {**TWICE, "subject_span": [float("nan"), 4]},
            "list, row 2: subject_span must be [first character, one past",
        ),
        (
            {**EMMA, "subject": "Literature"},
            "list, row 2: subject 'Literature' occurs 0 times in the question",
        ),
    ],
)
def test_one_bad_annotation_drops_its_row_and_no_other(bad, detail):
    data = load_qa(
        [{**EMMA, "subject": "Emma"}, bad, {"question": "Who wrote Ulysses?", "answers": "Joyce"}]
    )
    assert [e.question for e in data.examples] == ["Who wrote Emma?", "Who wrote Ulysses?"]
    assert data.pool_dropped == data.dropped_counts == {"bad_annotation": 1}
    assert data.dropped[0].detail.startswith(detail)
    ruled = load_qa([bad], spans="rules")
    assert ruled.dropped_counts == {} and len(ruled) == 1


def test_annotations_that_are_all_bad_are_an_error_and_most_a_warning():
    school = [
        {**EMMA, "subject": "Literature"},
        {"question": "Who wrote Ada?", "answers": "Nabokov", "subject": "Literature"},
    ]
    with refused(SpanError, "list, row 1: subject 'Literature' occurs 0 times") as caught:
        load_qa(school)
    cure = "No row of 2 can be used. If these columns are no annotation,"
    assert cure in str(caught.value)
    told = "list: 2 of 3 rows are dropped as bad_annotation: list, row 1: subject 'Lit"
    with pytest.warns(UserWarning, match=re.escape(told)):
        data = load_qa([*school, {**EMMA, "question": "Who wrote Sylvia?"}])
    assert len(data) == 1
    with refused(
        SpanError, "list, row 1: subject span [0, 400] lies outside its question of 15 char"
    ):
        load_qa([{**EMMA, "subject_span": [0, 400]}])


EMPTY = [
    (field, empty)
    for field in ("property", "property_span")
    for empty in ("", "  ", None, float("nan"))
]


@pytest.mark.parametrize(("field", "empty"), [*EMPTY, ("property_span", [])])
def test_an_empty_segment_is_not_annotated_and_the_source_says_so(field, empty):
    row = {
        "question": "Who wrote Emma?",
        "answers": "Austen",
        "subject_span": [10, 14],
        field: empty,
    }
    data = load_qa(pandas.DataFrame([row]))
    assert spans_of(data) == [("Emma", "wrote", "annotation+rules")]
    assert "spans annotation+rules 1 |" in repr(data)


@pytest.mark.parametrize(
    "bad",
    [
        {"question": "Who wrote \ud83dEmma?"},
        {"answers": ["Austen", "Au\udc00sten"]},
        {"id": "\ud800"},
        {"relation": "\udfff"},
    ],
)
def test_a_lone_surrogate_drops_its_row(bad):
    rows = [
        {"id": "a", **EMMA},
        {"id": "b", "question": "Who wrote Ada?", "answers": "Nabokov", **bad},
    ]
    data = load_qa(rows)
    assert [e.example_id for e in data.examples] == ["a"]
    assert data.pool_dropped == {"lone_surrogate": 1}
    assert (
        "contains half of a character (a lone surrogate). Save the file" in data.dropped[0].detail
    )
    # What is kept of it can be written to any file.
    dropped = data.dropped[0]
    assert "".join(
        (dropped.example_id, dropped.question, dropped.answer, dropped.detail, repr(data))
    ).encode("utf8")


def test_expected_share_of_right_subjects_is_shown():
    lower = load_qa([{"question": "who wrote emma", "answers": "Austen"}] * 2)
    assert lower.form == "nq" and f"expected accuracy {ACCURACY['nq']} |" in repr(lower)
    cased = load_qa([EMMA, {"question": "What is Ada's occupation?", "answers": "poet"}])
    assert cased.form == "triviaqa" and str(ACCURACY["triviaqa"]) in cased._repr_html_()
    named = load_qa(pandas.DataFrame(HUB_ROWS["hotpotqa"]), dataset_name="hotpotqa")
    assert "questions in the form of HotpotQA" in repr(named)
    popqa = load_qa(pandas.DataFrame(HUB_ROWS["popqa"]).drop(columns="subj"), dataset_name="popqa")
    assert str(ACCURACY["popqa"]) in repr(popqa)
    annotated = load_qa([{**EMMA, "subject": "Emma", "property": "wrote"}])
    assert "expected" not in repr(annotated)


def test_repr_html_and_frame_show_counts_and_share():
    table = pandas.DataFrame([*OWN, {"id": "<d>", "question": "", "answers": ["x"]}])
    data = load_qa(table, dataset_name="<mine>", limit=4, seed=3)
    share = ((4 + 5) / 15 + (4 + 7) / 28 + (3 + 2) / 13) / 3
    assert data.question_share == pytest.approx(share)
    assert (
        repr(data)
        == "QAData('<mine>': examples 3 | dropped 1 (empty_question 1) | pool 3 | spans annotation"
        f" 2, rules 1 | expected accuracy {ACCURACY['triviaqa']} | subject and property, share"
        f" of question {share:.2f} | limit 4 | seed 3 | source frame | sha256"
        f" {data.sha256[:12]})"
    )
    assert "<caption>QAData: &lt;mine&gt;</caption>" in data._repr_html_()
    frame = data.to_frame()
    assert list(frame["subject"]) == ["Emma", "Peru", "Ulm"]
    cut = [
        q[a:b]
        for q, a, b in zip(
            frame["question"], frame["property_start"], frame["property_end"], strict=True
        )
    ]
    assert cut == list(frame["property"])


def test_known_datasets_are_four_and_four_and_three_of_pairs_without_heavy_imports():
    entries = known_datasets()
    assert [e.name for e in entries if e.kind == "hub"] == list(HUB_ROWS)
    assert [e.name for e in entries if e.kind == "sample"] == [
        f"{name}-sample" for name in HUB_ROWS
    ]
    assert [e.name for e in entries if e.kind == "pairs"] == [
        "facts-pairs",
        "ioi-pairs",
        "induction-pairs",
    ]
    code = (
        "import sys, anchorlens.questions.datasets as d; d.known_datasets(); "
        "sys.exit(any(m in sys.modules for m in ('torch', 'pandas', 'datasets', 'pyarrow')))"
    )
    assert exit_code(code) == 0


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "least", "share"),
    [("popqa", 1.0, 0.54), ("triviaqa", 0.98, 0.33), ("hotpotqa", 0.98, 0.35), ("nq", 0.97, 0.54)],
)
def test_real_files_keep_nearly_all_rows(tmp_path, shared_data, name, least, share):
    lines = (shared_data / f"{name}.jsonl").read_text(encoding="utf8").splitlines()[:120]
    path = tmp_path / f"{name}.jsonl"
    path.write_text("\n".join(lines), encoding="utf8")
    data = load_qa(name, path=path)
    assert len(data) >= least * len(lines)
    assert len(data) + sum(data.pool_dropped.values()) == len(lines)
    assert data.question_share == pytest.approx(share, abs=0.06)
    for example in data.examples:
        assert_lawful(example.question, example.subject, example.property)
        assert example.property.of(example.question).lower() not in WH
    if name == "popqa":
        assert {e.span_source for e in data.examples} == {"template"}
        assert [str(json.loads(line)["id"]) for line in lines] == [
            e.example_id for e in data.examples
        ]


@pytest.mark.slow
def test_parquet_and_frame_gaps_are_missing_fields(tmp_path):
    frame = pandas.DataFrame(
        [{**OWN[0], "s_pop": 3}, {"id": "z", "question": "Who wrote Ada?", "answers": ["N"]}]
    )
    assert pandas.isna(frame["relation"][1])
    frame.to_parquet(tmp_path / "gap.parquet")
    for data in (load_qa(frame, dataset_name="g"), load_qa("g", path=tmp_path / "gap.parquet")):
        assert [(e.relation, e.popularity) for e in data.examples] == [
            ("author", 12.5),
            (None, None),
        ]


def test_the_record_distinguishes_span_extractors():
    """Two functions of one name, and rules against templates, change the numbers of a sweep and so
    its ``run_id``.
    """
    from anchorlens.runs.provenance import run_id_of

    ways = [
        "auto",
        "rules",
        lambda q: ([len(q) - 3, len(q)], [0, 2]),
        lambda q: ([len(q) - 4, len(q)], [0, 2]),
    ]
    records = [load_qa(HUB_ROWS["popqa"], dataset_name="popqa", spans=way).record() for way in ways]
    assert records[0]["spans"] == "auto"
    assert records[2]["spans"].startswith("callable:")
    assert len({run_id_of(record) for record in records}) == 4


def test_question_sets_have_the_interface_of_data_sets():
    assert isinstance(load_qa(OWN), PromptDataset)


def test_dropped_rows_as_a_frame():
    data = load_qa([("Who wrote Emma?", "Austen"), ("", "Austen"), ("Who wrote Ada?", "")])
    frame = data.dropped_frame()
    assert list(frame.columns) == [
        "example_id",
        "dataset",
        "question",
        "answer",
        "reason",
        "detail",
    ]
    assert frame[["question", "reason"]].values.tolist() == [
        ["", "empty_question"],
        ["Who wrote Ada?", "no_answer"],
    ]
    assert frame["reason"].value_counts().to_dict() == data.dropped_counts
    assert load_qa(OWN).dropped_frame().shape == (0, 6)
