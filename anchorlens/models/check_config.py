"""Check whether a backend can hold a model, from its configuration."""

from transformers import PretrainedConfig


def check_config(config: PretrainedConfig, name: str, backend: str) -> None:
    """Raise UnsupportedModelError or CheckpointError if ``backend`` cannot hold a model with this
    configuration.
    """
    if backend == "bridge":
        from anchorlens.models.bridge.load import check_bridge_config

        check_bridge_config(config, name)
    else:
        from anchorlens.models.hooked.mapping import check_hooked_config

        check_hooked_config(config, name)
