"""Who measures the sweeps of a run: this process, or others (:mod:`anchorlens.protocols.spread`)."""

import os
from abc import ABC, abstractmethod
from typing import Any

from anchorlens.models.load import load_model
from anchorlens.protocols.driver import Measuring, Station
from anchorlens.protocols.plug import SweepProtocol
from anchorlens.protocols.specification import Specification
from anchorlens.questions.datasets import QAData


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
        device: Where models run that are given by name; the best one where it is None.
        dtype: Their number type; their own where it is None.
        stream: Whether their weights are read layer by layer.
        command: What began the run, where it was not this process.
    """

    def __init__(
        self, device: str | None = None, dtype: str | None = None, stream: bool = False, command: str | None = None
    ) -> None:
        self._device, self._dtype, self._stream, self._command = device, dtype, stream, command
        self._given: Any = None
        self._model: Any = None

    def station(self, protocol: SweepProtocol[Any, Any], model: Any, data: QAData, spec: Specification) -> Station:
        """See :class:`Hands`."""
        if model is not self._given:
            self._model = None  # let go of before the next one needs the memory
            named = isinstance(model, (str, os.PathLike))
            how = {"device": self._device, "dtype": self._dtype, "stream": self._stream}
            self._model = load_model(model, **how) if named else model
            self._given = model
        return Station(protocol, self._model, data, spec, self._command)


__all__ = ["Hands", "Here"]
