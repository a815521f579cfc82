"""Interface of the analysis of a protocol: from the samples to curves, contrasts and findings."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pandas as pd

from anchorlens.constants import POINTS
from anchorlens.results.findings import Findings


class Analysis(ABC):
    """Computes curves, contrasts and findings from the samples of one protocol, without a model.

    Attributes:
        name: Name of the protocol: ``swap``, ``knockout``, ...
        title: Display name: ``activation swap``.
        result: Class of the results.
    """

    name: ClassVar[str]
    title: ClassVar[str]
    result: ClassVar[type[Any]]

    def unit(self, config: Mapping[str, Any]) -> str:  # noqa: ARG002
        """Return the unit of the effects of a sweep with this configuration."""
        return POINTS

    @abstractmethod
    def curves(self, result: Any) -> pd.DataFrame:
        """Compute all curves with bands, controls included; columns of ``curves.parquet``."""

    @abstractmethod
    def contrasts(self, result: Any) -> pd.DataFrame:
        """Compute the contrasts with intervals; columns of ``contrasts.parquet``."""

    @abstractmethod
    def findings(self, result: Any) -> Findings:
        """Return the findings as data."""

    @abstractmethod
    def summary(self, result: Any) -> pd.DataFrame:
        """Return the leading numbers, in one row or a few."""

    @abstractmethod
    def settings(self, result: Any) -> str:
        """Return the settings as text for the repr."""

    def table(self, results: Sequence[Any]) -> tuple[str, pd.DataFrame]:
        """Return title and rows of the command line's table of several sweeps."""
        return self.title, pd.concat(
            [self.summary(result) for result in results], ignore_index=True
        )
