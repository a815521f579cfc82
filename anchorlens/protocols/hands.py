"""Who measures the sweeps of a run: this process, or others (:mod:`anchorlens.protocols.spread`)."""

import os
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from typing import Any

from anchorlens.models.load import load_model
from anchorlens.protocols.driver import Measuring, Station
from anchorlens.protocols.plug import SweepProtocol
from anchorlens.protocols.specification import Specification
from anchorlens.questions.datasets import QAData


@dataclass(frozen=True)
class Loading:
    """How models are loaded that are given by name; see :func:`anchorlens.load_model`.

    Attributes:
        device: Where they run; the best one where it is None.
        dtype: Their number type; their own where it is None.
        stream: Whether their weights are read layer by layer.
        n_devices: Over how many devices they are spread.
    """

    device: str | None = None
    dtype: str | None = None
    stream: bool = False
    n_devices: int = 1


class Hands(ABC):
    """Measure one sweep after the other; a model that the next one needs too stays where it is."""

    @abstractmethod
    def station(self, protocol: SweepProtocol[Any, Any], model: Any, data: QAData, spec: Specification) -> Measuring:
        """Who measures one sweep.

        Raises:
            AnchorlensError: The model cannot be had.
        """


class Here(Hands):
    """This process.

    Args:
        loading: How models are loaded that are given by name.
        command: What began the run, where it was not this process.
    """

    def __init__(self, loading: Loading | None = None, command: str | None = None) -> None:
        self._loading, self._command = loading or Loading(), command
        self._given: Any = None
        self._model: Any = None

    def station(self, protocol: SweepProtocol[Any, Any], model: Any, data: QAData, spec: Specification) -> Station:
        """See :class:`Hands`."""
        if model is not self._given:
            self._model = None  # let go of before the next one needs the memory
            named = isinstance(model, (str, os.PathLike))
            self._model = load_model(model, **asdict(self._loading)) if named else model
            self._given = model
        return Station(protocol, self._model, data, spec, self._command)


__all__ = ["Hands", "Here", "Loading"]
