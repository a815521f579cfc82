"""Known question sets, and the rows of the hub, of an embedded sample and of a table of questions."""

from collections.abc import Mapping
from importlib import resources
from typing import Any

from anchorlens.display import short_repr
from anchorlens.errors import DataError, DownloadError, InputError
from anchorlens.prompts.cells import plain_rows
from anchorlens.prompts.dataset import KnownDataset
from anchorlens.prompts.read_rows import Rows, parse_jsonl, table_rows

_HUB = (
    KnownDataset("popqa", "akariasai/PopQA", None, "test", "hub", "14,267 templated questions, 16 relations, with popularity"),
    KnownDataset("triviaqa", "mandarjoshi/trivia_qa", "unfiltered.nocontext", "validation", "hub", "11,313 trivia questions"),
    KnownDataset("hotpotqa", "hotpotqa/hotpot_qa", "distractor", "validation", "hub", "7,405 two-hop questions"),
    KnownDataset("nq", "google-research-datasets/nq_open", None, "validation", "hub", "3,610 search engine questions"),
)
SAMPLE_SUFFIX = "-sample"
_SAMPLE_NOTE = "embedded questions in the schema of {}, written for this package; not rows of that data set"
KNOWN: tuple[KnownDataset, ...] = _HUB + tuple(
    KnownDataset(d.name + SAMPLE_SUFFIX, d.hub_id, d.config, d.split, "sample", _SAMPLE_NOTE.format(d.name)) for d in _HUB
)


def find_dataset(name: str) -> KnownDataset | None:
    """Return the known question set of this name; None if there is none."""
    return next((entry for entry in KNOWN if entry.name == name), None)


def _list_row(row: object, number: int) -> Mapping[Any, Any]:
    """Return a row of a list as a dictionary; ``number`` counts from 1."""
    if isinstance(row, Mapping):
        return row
    if isinstance(row, tuple | list) and len(row) == 2 and isinstance(row[0], str) and isinstance(row[1], str | list | tuple):
        return {"question": row[0], "answers": row[1]}
    fix = "Pass dictionaries {'question': ..., 'answers': ...} or pairs (question, answer)"
    raise DataError(f"list, row {number} is {short_repr(row)}. {fix}.")


def question_rows(table: Any) -> Rows:
    """Read a pandas frame, a ``datasets.Dataset``, or a list of dictionaries or (question, answer) pairs."""
    is_list = isinstance(table, list | tuple)
    return table_rows([_list_row(row, number) for number, row in enumerate(table, start=1)] if is_list else table)


def sample_rows(entry: KnownDataset) -> Rows:
    """Read an embedded sample."""
    file = resources.files("anchorlens.questions") / "samples" / f"{entry.name.removesuffix(SAMPLE_SUFFIX)}.jsonl"
    return plain_rows(parse_jsonl(file.read_text(encoding="utf8"), entry.name), entry.name)


def hub_rows(hub_id: str, config: str | None, split: str, revision: str | None) -> Rows:
    """Read a data set of the hub through ``datasets`` and its cache.

    A repository with a loading script is read from the hub's parquet files, unless a revision is passed.
    """
    import datasets
    import httpx
    from datasets.exceptions import DatasetsError

    fix = "Load it once while connected, or pass a local file of the same schema as path= (jsonl, json, csv, tsv, parquet)."
    try:
        try:
            loaded = datasets.load_dataset(hub_id, config, split=split, revision=revision)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error) or revision is not None:
                raise
            files = f"hf://datasets/{hub_id}@refs/convert/parquet/{config or 'default'}/{split}/*.parquet"
            loaded = datasets.load_dataset("parquet", data_files={split: files}, split=split)
    except ValueError as error:
        if "find cache" in str(error):
            raise DownloadError(f"{hub_id} is not in the local cache and the hub was not reached. {fix}") from error
        wrong = "split" if "split" in str(error).lower() else "config"
        raise InputError(f"{hub_id} cannot be loaded with config={config!r}, split={split!r}: {error}", argument=wrong) from error
    except (OSError, DatasetsError, httpx.HTTPError) as error:
        raise DownloadError(f"{hub_id} could not be loaded from the hub ({type(error).__name__}: {error}). {fix}") from error
    return table_rows(loaded)
