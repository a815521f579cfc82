"""Results of :func:`anchorlens.doctor`: one row per check."""

import json
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import pandas as pd

OK, WARNING, FAILED, NOT_APPLICABLE = "ok", "warning", "failed", "not applicable"


@dataclass(frozen=True)
class ModelCheck:
    """One check of a model.

    Attributes:
        name: Name of the check.
        status: ``ok``, ``warning``, ``failed`` or ``not applicable``.
        value: Measured value; None if nothing was measured.
        limit: Largest allowed value; None if there is none.
        unit: Unit of value and limit.
        detail: Explanation of the value, or the reason of the status.
        cure: One sentence on the fix; empty for ``ok`` and ``not applicable``.
    """

    name: str
    status: str
    value: float | None = None
    limit: float | None = None
    unit: str = ""
    detail: str = ""
    cure: str = ""

    def texts(self) -> tuple[str, str, str, str, str]:
        """Return name, status, value with unit, limit and detail as texts; empty if missing."""
        value, limit = ("" if number is None else f"{number:.3g}" for number in (self.value, self.limit))
        return self.name, self.status, f"{value} {self.unit}" if value and self.unit else value, limit, self.detail


@dataclass(frozen=True)
class Diagnosis:
    """Checks of one model; frozen.

    Attributes:
        model: Name of the model.
        backend: ``hooked`` or ``bridge``.
        transformer_lens: Version of TransformerLens.
        device: Device of the model.
        dtype: Data type of the model.
        seconds: Wall time of loading and checks.
        checks: Checks in execution order.
    """

    model: str
    backend: str
    transformer_lens: str
    device: str
    dtype: str
    seconds: float
    checks: tuple[ModelCheck, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed; warnings are allowed."""
        return all(check.status != FAILED for check in self.checks)

    @property
    def title(self) -> str:
        """Model, backend and versions in one line."""
        return (
            f"{self.model}: {self.backend}, transformer-lens {self.transformer_lens}, {self.dtype} on {self.device}, "
            f"{self.seconds:.0f} s: {OK if self.ok else FAILED}"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per check: ``name status value limit unit detail cure``; missing numbers are null."""
        return pd.DataFrame([asdict(check) for check in self.checks], columns=list(ModelCheck.__dataclass_fields__))

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and ``ok`` as JSON types; a value that is not finite is None."""
        fields = asdict(self)
        for check in fields["checks"]:
            check |= {name: None for name in ("value", "limit") if check[name] is not None and not abs(check[name]) < float("inf")}
        return {"ok": self.ok, **fields, "checks": list(fields["checks"])}

    def to_json(self) -> str:
        """Return :meth:`to_dict` as a JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def __repr__(self) -> str:
        rows = [("check", "status", "value", "limit", ""), *(check.texts() for check in self.checks)]
        widths = [max(len(row[i]) for row in rows) for i in range(4)]
        lines = ["  ".join([*(cell.ljust(w) for cell, w in zip(row[:4], widths, strict=True)), row[4]]).rstrip() for row in rows]
        cures = [f"{check.name}: {check.cure}" for check in self.checks if check.cure]
        return "\n".join([self.title, *lines, *cures])

    def _repr_html_(self) -> str:
        columns = ["check", "status", "value", "limit", "detail", "cure"]
        table = pd.DataFrame([(*check.texts(), check.cure) for check in self.checks], columns=columns)
        return f"<p><b>{escape(self.title)}</b></p>{table.to_html(index=False)}"
