"""Results of :func:`anchorlens.doctor`: one row per check."""

import json
import math
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import pandas as pd

from anchorlens.display import escape_hidden

OK = "ok"
WARNING = "warning"
FAILED = "failed"
NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, kw_only=True)
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
        value = _show(self.value)
        if value and self.unit:
            value = f"{value} {self.unit}"
        return (self.name, self.status, value, _show(self.limit), self.detail)


def _show(number: float | None) -> str:
    return "" if number is None else f"{number:.3g}"


@dataclass(frozen=True, kw_only=True)
class Diagnosis:
    """Checks of one model, returned by :func:`anchorlens.doctor`; frozen.

    Examples:
        >>> import anchorlens as al
        >>> found = al.doctor("smollm2-135m-instruct")  # doctest: +SKIP
        >>> [check.name for check in found.checks if check.status == "failed"]  # doctest: +SKIP
        []

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
            f"{self.model}: {self.backend}, transformer-lens {self.transformer_lens}, {self.dtype}"
            f" on {self.device}, {self.seconds:.0f} s: {OK if self.ok else FAILED}"
        )

    def to_frame(self) -> pd.DataFrame:
        """Return one row per check: ``name status value limit unit detail cure``; missing numbers
        are null.
        """
        return pd.DataFrame(
            [asdict(check) for check in self.checks], columns=list(ModelCheck.__dataclass_fields__)
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all fields and ``ok`` as JSON types; a value that is not finite is None."""
        fields = asdict(self)
        for check in fields["checks"]:
            for name in ("value", "limit"):
                if check[name] is not None and not math.isfinite(check[name]):
                    check[name] = None
        return {"ok": self.ok, **fields, "checks": list(fields["checks"])}

    def to_json(self) -> str:
        """Return :meth:`to_dict` as a JSON text."""
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def __repr__(self) -> str:
        rows = [("check", "status", "value", "limit", "")]
        rows += [check.texts() for check in self.checks]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        widths[-1] = 0  # the detail ends the line
        lines: list[str] = []
        for row in rows:
            cells = map(str.ljust, row, widths)
            lines.append("  ".join(cells).rstrip())
        cures = [f"{check.name}: {check.cure}" for check in self.checks if check.cure]
        return escape_hidden("\n".join([self.title, *lines, *cures]))

    def _repr_html_(self) -> str:
        columns = ["check", "status", "value", "limit", "detail", "cure"]
        table = pd.DataFrame(
            [(*check.texts(), check.cure) for check in self.checks], columns=columns
        )
        return f"<p><b>{escape(self.title)}</b></p>{table.to_html(index=False)}"
