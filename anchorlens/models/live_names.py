"""Names of live models in results: what the model itself states."""

import re
from pathlib import Path

from transformers import PreTrainedModel

from anchorlens.models.adapter import LensModel, is_bridge

# Names that TransformerLens gives a model for which none was passed.
_PLACEHOLDERS = ("", "custom", "external")
# ``owner/name``, or a .gguf file in such a repository.
_HUB_NAME = re.compile(r"\w[\w.-]{0,95}/[\w.-]{1,96}(/[\w.-]{1,96}\.gguf)?", re.ASCII)


def name_of_hf_model(model: PreTrainedModel) -> str:
    """Return the name of a live Hugging Face model: the last part of its origin, else its class."""
    return Path(str(model.config._name_or_path)).name or type(model).__name__


def name_of_lens_model(model: LensModel) -> str:
    """Return the name of a live TransformerLens model, by which results tell it from others.

    It is ``cfg.model_name``, else the name of the Hugging Face model inside a bridge, else
    ``custom``. Of a path only the last part is kept: other folders belong to one machine.
    """
    stated = str(model.cfg.model_name or "")
    if stated not in _PLACEHOLDERS:
        return _without_folders(stated)
    if is_bridge(model) and isinstance(model.original_model, PreTrainedModel):
        return name_of_hf_model(model.original_model)
    return "custom"


def _without_folders(name: str) -> str:
    """Return the last part of a path; a name on the hub stays whole."""
    is_hub_name = _HUB_NAME.fullmatch(name) and not Path(name).exists()
    return name if is_hub_name else Path(name).name or "custom"
