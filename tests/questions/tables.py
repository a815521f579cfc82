"""Tables of questions in the schemas of the hub and of users, in files of every type."""

import json
from pathlib import Path

import pandas

from anchorlens.questions.example import QAData

# Rows as the hub holds them, with every field; questions are our own.
HUB_ROWS = {
    "popqa": [
        {
            "id": 4222362,
            "subj": "Ada Lovelace",
            "prop": "occupation",
            "obj": "poet",
            "subj_id": 1,
            "prop_id": 22,
            "obj_id": 2834605,
            "s_aliases": '["Ada Byron"]',
            "o_aliases": "[]",
            "s_uri": "http://w/Q1",
            "o_uri": "http://w/Q2",
            "s_wiki_title": "Ada Lovelace",
            "o_wiki_title": "Poet",
            "s_pop": 142,
            "o_pop": 25692,
            "question": "What is Ada Lovelace's occupation?",
            "possible_answers": '["poet", "poetess"]',
        },
    ],
    "triviaqa": [
        {
            "question": '"Who wrote ""Emma""?"',
            "question_id": "tc_2",
            "question_source": "http://q/",
            "entity_pages": {"doc_source": [], "filename": [], "title": [], "wiki_context": []},
            "search_results": {
                "description": [],
                "filename": [],
                "rank": [],
                "title": [],
                "url": [],
                "search_context": [],
            },
            "answer": {
                "aliases": ["Jane Austen", "J. Austen"],
                "normalized_aliases": ["jane austen", "j austen"],
                "matched_wiki_entity_name": "",
                "normalized_matched_wiki_entity_name": "",
                "normalized_value": "jane austen",
                "type": "WikipediaEntity",
                "value": "Jane Austen",
            },
        },
    ],
    "hotpotqa": [
        {
            "id": "5a8b",
            "question": "Which is larger, Russia or Belgium?",
            "answer": "Russia",
            "type": "comparison",
            "level": "hard",
            "supporting_facts": {"title": ["Russia"], "sent_id": [0]},
            "context": {"title": ["Russia"], "sentences": [["Large."]]},
        },
    ],
    "nq": [{"question": "when did the titanic sink", "answer": ["1912", "April 1912"]}],
}


def spans_of(data: QAData) -> list[tuple[str, str, str]]:
    return [
        (e.subject.of(e.question), e.property.of(e.question), e.span_source) for e in data.examples
    ]


OWN = [
    {
        "id": "a",
        "question": "Who wrote Emma?",
        "answers": ["Jane Austen", "Austen"],
        "relation": "author",
        "popularity": 12.5,
    },
    {
        "id": "b",
        "question": "What is the capital of Peru?",
        "answers": ["Lima"],
        "subject_span": [23, 27],
        "property_span": [12, 19],
    },
    {
        "id": "c",
        "question": "Where is Ulm?",
        "answers": ["Germany, mostly"],
        "subject": "Ulm",
        "property": "is",
    },
]


def write(path: Path, rows: list[dict]) -> Path:
    if path.suffix == ".jsonl":
        path.write_text(
            "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf8"
        )
    elif path.suffix == ".json":
        path.write_text(json.dumps({"data": rows}), encoding="utf8")
    elif path.suffix == ".parquet":
        pandas.DataFrame(rows).to_parquet(path)
    else:
        cells = [
            {k: json.dumps(v) if isinstance(v, list) else v for k, v in row.items()} for row in rows
        ]
        pandas.DataFrame(cells).to_csv(
            path, sep="\t" if path.suffix == ".tsv" else ",", index=False, encoding="utf-8-sig"
        )
    return path
