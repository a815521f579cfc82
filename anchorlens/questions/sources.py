"""Known question sets, and the rows of the hub, of an embedded sample and of a table of
questions.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib import resources
from typing import Any

from anchorlens.display import short_repr
from anchorlens.errors import DataError, DownloadError, InputError
from anchorlens.prompts.cells import plain_rows
from anchorlens.prompts.dataset import KnownDataset
from anchorlens.prompts.read_rows import RawData, Rows, parse_jsonl, read_table

_HUB = (
    KnownDataset(
        name="popqa",
        hub_id="akariasai/PopQA",
        config=None,
        split="test",
        kind="hub",
        note="14,267 templated questions, 16 relations, with popularity",
    ),
    KnownDataset(
        name="triviaqa",
        hub_id="mandarjoshi/trivia_qa",
        config="unfiltered.nocontext",
        split="validation",
        kind="hub",
        note="11,313 trivia questions",
    ),
    KnownDataset(
        name="hotpotqa",
        hub_id="hotpotqa/hotpot_qa",
        config="distractor",
        split="validation",
        kind="hub",
        note="7,405 two-hop questions",
    ),
    KnownDataset(
        name="nq",
        hub_id="google-research-datasets/nq_open",
        config=None,
        split="validation",
        kind="hub",
        note="3,610 search engine questions",
    ),
)
SAMPLE_SUFFIX = "-sample"
_SAMPLE_NOTE = (
    "embedded questions in the schema of {}, written for this package; not rows of that data set"
)


def _sample_of(entry: KnownDataset) -> KnownDataset:
    note = _SAMPLE_NOTE.format(entry.name)
    return replace(entry, name=entry.name + SAMPLE_SUFFIX, kind="sample", note=note)


KNOWN: tuple[KnownDataset, ...] = (*_HUB, *map(_sample_of, _HUB))


def find_dataset(name: str) -> KnownDataset | None:
    """Return the known question set of this name; None if there is none."""
    return next((entry for entry in KNOWN if entry.name == name), None)


def _list_row(row: object, number: int) -> Mapping[Any, Any]:
    """Return a row of a list as a dictionary; ``number`` counts from 1."""
    if isinstance(row, Mapping):
        return row
    names = getattr(row, "_fields", None)
    if isinstance(row, tuple) and names is not None:  # frame.itertuples(): names decide
        return dict(zip(names, row, strict=True))
    if (
        isinstance(row, tuple | list)
        and len(row) == 2
        and isinstance(row[0], str)
        and isinstance(row[1], str | list | tuple)
    ):
        return {"question": row[0], "answers": row[1]}
    fix = "Pass dictionaries {'question': ..., 'answers': ...} or pairs (question, answer)"
    raise DataError(f"list, row {number} is {short_repr(row)}. {fix}.")


def read_questions(table: Any, limit: int | None, is_read: Callable[[str], bool]) -> RawData:
    """Read a pandas frame, a ``datasets.Dataset``, or a list of dictionaries or (question, answer)
    pairs; of a streamed data set the first ``limit`` rows.
    """
    if isinstance(table, list | tuple):
        table = [_list_row(row, number) for number, row in enumerate(table, start=1)]
    return read_table(table, limit, is_read)


def sample_rows(entry: KnownDataset) -> Rows:
    """Read an embedded sample."""
    folder = resources.files("anchorlens.questions") / "samples"
    file = folder / f"{entry.name.removesuffix(SAMPLE_SUFFIX)}.jsonl"
    return plain_rows(parse_jsonl(file.read_text(encoding="utf8"), entry.name), entry.name)


def read_hub(
    hub_id: str,
    config: str | None,
    split: str,
    revision: str | None,
    is_read: Callable[[str], bool],
) -> RawData:
    """Read a data set of the hub through ``datasets`` and its cache.

    A repository with a loading script is read from the hub's parquet files, unless a revision is
    passed.
    """
    import datasets
    import httpx
    from datasets.exceptions import DatasetsError

    fix = (
        "Load it once while connected, or pass a local file of the same schema as path= (jsonl,"
        " json, csv, tsv, parquet)."
    )
    try:
        try:
            loaded = datasets.load_dataset(hub_id, config, split=split, revision=revision)
        except RuntimeError as error:
            if "scripts are no longer supported" not in str(error) or revision is not None:
                raise
            converted = f"hf://datasets/{hub_id}@refs/convert/parquet"
            files = f"{converted}/{config or 'default'}/{split}/*.parquet"
            loaded = datasets.load_dataset("parquet", data_files={split: files}, split=split)
    except ValueError as error:
        if "find cache" in str(error):
            raise DownloadError(
                f"{hub_id} is not in the local cache and the hub was not reached. {fix}"
            ) from error
        wrong = "split" if "split" in str(error).lower() else "config"
        raise InputError(
            f"{hub_id} cannot be loaded with config={config!r}, split={split!r}: {error}",
            argument=wrong,
        ) from error
    except (OSError, DatasetsError, httpx.HTTPError) as error:
        raise DownloadError(
            f"{hub_id} could not be loaded from the hub ({type(error).__name__}: {error}). {fix}"
        ) from error
    return read_table(loaded, is_read=is_read)
