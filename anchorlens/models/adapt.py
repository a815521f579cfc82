"""Choose the adapter of a model."""

from anchorlens.errors import InputError
from anchorlens.models.adapter import Adapter, LensModel, is_bridge, is_hooked


def adapt(model: object) -> Adapter:
    """Return the adapter of a HookedTransformer or TransformerBridge; raise InputError for other
    objects.
    """
    if is_hooked(model):
        from anchorlens.models.hooked.adapter import HookedAdapter

        return HookedAdapter(model)
    if is_bridge(model):
        from anchorlens.models.bridge.adapter import BridgeAdapter

        return BridgeAdapter(model)
    raise InputError(
        f"model: an object of type {type(model).__name__}, neither a HookedTransformer nor a"
        " TransformerBridge. Load it with al.load_model(...).",
        argument="model",
    )


def check_has_numbers(model: LensModel) -> None:
    """Raise InputError if the weights of a model are on the meta device."""
    if adapt(model).device.type == "meta":
        raise InputError(
            "model: its weights are on the meta device, which has shapes but no numbers."
            " Load the weights onto a CPU or GPU first.",
            argument="model",
        )
