"""Data set of a study that is loaded later.

A light module: the command line finds bad files before it imports torch.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

from anchorlens.display import short_repr
from anchorlens.errors import InputError
from anchorlens.prompts.dataset import PromptDataset
from anchorlens.prompts.load_pairs import load_pairs
from anchorlens.questions.datasets import load_qa


@dataclass(frozen=True)
class DatasetSpec:
    """Arguments of :func:`anchorlens.load_qa`, or of :func:`anchorlens.load_pairs`, for a data set
    to be loaded later.

    Examples:
        >>> import anchorlens as al
        >>> spec = al.DatasetSpec("popqa-sample", limit=2)
        >>> len(spec.load())
        2
        >>> study = al.Study("smollm2-135m-instruct", spec, al.Swap(layers=(0, 24)))

    Attributes:
        name: Name of a known data set, or any name with ``path``.
        path: File of questions, or of prompt pairs for protocols on pairs.
        limit: Number of questions to draw. If None, all.
        seed: Random seed of the draw.
        columns: Mapping from field names to column names of the file.
        spans: Source of the spans of subject and property.
        dataset_name: Name of the data set in outputs.
        answers_sep: Separator of several answers in one cell, such as ``";"``.
        answer_space: For prompt pairs, as in :func:`anchorlens.load_pairs`.
        numbers: For prompt pairs, as in :func:`anchorlens.load_pairs`.
    """

    name: str | None
    path: str | None = None
    limit: int | None = None
    seed: int = 0
    columns: Mapping[str, str] | None = None
    spans: str = "auto"
    dataset_name: str | None = None
    answers_sep: str | None = None
    answer_space: str = "keep"
    numbers: str = "text"

    def load(self, *, pairs: bool = False) -> PromptDataset:
        """Load questions, or prompt pairs.

        Raise InputError for an argument that pairs do not have.
        """
        try:
            return self._load_pairs() if pairs else self._load_questions()
        except OSError as error:
            raise InputError(
                f"{error.filename or self.path or self.name}: {error.strerror or error}.",
                argument="path",
            ) from error

    def _refuse(self, names: Sequence[str], kind: str) -> None:
        """Raise InputError for an argument that only another kind of data set has."""
        for one in fields(self):
            value = getattr(self, one.name)
            if one.name in names and value != one.default:
                raise InputError(
                    f"{one.name}={short_repr(value)}: is only for {kind}. Leave it out.",
                    argument=one.name,
                )

    def _load_questions(self) -> PromptDataset:
        of_pairs = ("answer_space", "numbers")
        self._refuse(of_pairs, "prompt pairs")
        return load_qa(**{name: one for name, one in vars(self).items() if name not in of_pairs})

    def _load_pairs(self) -> PromptDataset:
        self._refuse(("seed", "spans"), "questions")
        return load_pairs(
            self.path or self.name or "",
            dataset_name=self.dataset_name or (self.path and self.name),
            limit=self.limit,
            columns=self.columns,
            answers_sep=self.answers_sep,
            answer_space=self.answer_space,
            numbers=self.numbers,
        )
