"""A checkpoint is data: nothing in its files chooses code, names files elsewhere, or counts more
than the files hold; every error of a library is a CheckpointError with a cure.
"""

import json
import os
import pickle  # noqa: TID251 - attacks are pickled
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers.utils import logging as hf_logging

import anchorlens as al
from anchorlens.errors import CheckpointError
from anchorlens.models.config_data import drop_code_keys
from anchorlens.models.gguf_audit import check_gguf
from anchorlens.models.hf import load_config
from anchorlens.models.library_errors import checkpoint_errors
from tests.models.tiny import save_tiny

CURES = ("Fetch", "Compare", "Convert", "Pass tokenizer=", "Remove", "Download", "Merge")
ADVICE = ("weights_only=False", "trust_remote_code=True", "pip install kernels", "\x1b")


class Code:
    """Object whose pickle would run code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch /tmp/anchorlens-hostile",)


@pytest.fixture
def checkpoint(tiny, tmp_path):
    """A writable copy of a small checkpoint."""
    folder = tmp_path / "m"
    folder.mkdir()
    for file in Path(tiny("llama")).iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def edit(folder: Path, name: str = "config.json", **changes: Any) -> None:
    """Change fields of a JSON file of a checkpoint."""
    file = folder / name
    fields = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(fields | changes))


def index(folder: Path, target: object) -> None:
    """Replace the weights by an index that names a file."""
    (folder.parent / "outside.safetensors").write_bytes((folder / "model.safetensors").read_bytes())
    (folder / "model.safetensors").unlink()
    edit(folder, "model.safetensors.index.json", weight_map={"lm_head.weight": target})


def pickled(folder: Path, content: object) -> None:
    (folder / "model.safetensors").unlink()
    torch.save(content, folder / "pytorch_model.bin")  # noqa: TID251 - an attack


def raw_pickle(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"w": Code()}))


def zipped(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("a/data.pkl", pickle.dumps(Code()))
        archive.writestr("a/version", "3")


LFS = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"


def pickled_index(folder: Path, target: str) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"w": Code()}, folder / target)  # noqa: TID251 - an attack
    edit(folder, "pytorch_model.bin.index.json", weight_map={"lm_head.weight": target})


def scripted(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
        archive.writestr("a/constants.pkl", pickle.dumps(()))
        archive.writestr("a/data.pkl", pickle.dumps(Code()))
        archive.writestr("a/code/x.py", "import os")
        archive.writestr("a/version", "3")


def pipe(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return make


def written(name: str, text: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        (folder / name).write_text(text)

    return make


def nested(name: str) -> Callable[[Path], None]:
    return written(name, "[" * 100_000)


def outside_tokenizer(folder: Path) -> None:
    (folder.parent / "vocab.json").write_text("{}")
    edit(folder, "tokenizer_config.json", vocab_file="../vocab.json")


HOSTILE: dict[str, Callable[[Path], None]] = {
    "no key heads": lambda f: edit(f, num_key_value_heads=0),
    "negative width": lambda f: edit(f, hidden_size=-48),
    "billion layers": lambda f: edit(f, num_hidden_layers=10**9),
    "many layers": lambda f: edit(f, num_hidden_layers=9_999),
    "large vocabulary": lambda f: edit(f, vocab_size=10**12),
    "large MLP": lambda f: edit(f, intermediate_size=10**11),
    "nested config": nested("config.json"),
    "nested tokenizer": nested("tokenizer.json"),
    "config is a list": written("config.json", "[1]"),
    "index outside": lambda f: index(f, "../outside.safetensors"),
    "index absolute": lambda f: index(f, str(f.parent / "outside.safetensors")),
    "index of Windows": lambda f: index(f, "..\\outside.safetensors"),
    "index of numbers": lambda f: index(f, 7),
    "index of another kind": lambda f: index(f, "config.json"),
    "pickled code": lambda f: pickled(f, {"w": Code()}),
    "raw pickle": raw_pickle,
    "zipped pickle": zipped,
    "torch file of another model": lambda f: pickled(f, {"w": torch.ones(3)}),
    "torch file without tensors": lambda f: pickled(f, None),
    "pipe as config": pipe("generation_config.json"),
    "pipe as tokenizer": pipe("tokenizer.json"),
    "pipe as weights": pipe("model.safetensors"),
    "vocabulary outside": outside_tokenizer,
    "no positions": lambda f: edit(f, max_position_embeddings=0),
    "length that is a text": lambda f: edit(f, "tokenizer_config.json", model_max_length="x"),
    "pointer of Git LFS": lambda f: (pickled(f, None), written("pytorch_model.bin", LFS)(f))[1],
    "index of pickled code": lambda f: pickled_index(f, "part.bin"),
    "index of torch files outside": lambda f: pickled_index(f, "../part.bin"),
    "archive of TorchScript": scripted,
    "scheme of labels": lambda f: edit(f, label2id=7, num_key_value_heads=0),
    "tokenizer's own code": lambda f: edit(
        f, "tokenizer_config.json", tokenizer_class="X", auto_map={"AutoTokenizer": ["x.X", None]}
    ),
    "adapter": lambda f: edit(f, "adapter_config.json", base_model_name_or_path="x"),
}


def test_a_hostile_checkpoint_is_one_error_with_a_cure(tiny, tmp_path):
    """No code runs, nothing is read from elsewhere, and no library's advice is repeated."""
    hf_logging.disable_progress_bar()
    wrong: dict[str, str] = {}
    for name, attack in HOSTILE.items():
        folder = tmp_path / name.replace(" ", "-") / "m"
        folder.mkdir(parents=True)
        for file in Path(tiny("llama")).iterdir():
            (folder / file.name).write_bytes(file.read_bytes())
        attack(folder)
        try:
            al.load_model(folder, device="cpu", check_parity=False)
        except CheckpointError as error:
            text = str(error)
            if ("pickle" in name or "code" in name) and "which is not run" not in text:
                wrong[name] = text
            is_clear = text.isprintable() and any(cure in text for cure in CURES)
            if not is_clear or any(advice in text for advice in ADVICE):
                wrong[name] = text
        except al.AnchorlensError as error:
            if "config" not in name:
                wrong[name] = f"{type(error).__name__}: {error}"
        except Exception as error:  # noqa: BLE001 - a raw error is the finding
            wrong[name] = f"raw {type(error).__name__}: {error}"
        else:
            wrong[name] = "loaded"
    assert not wrong, wrong
    assert not Path("/tmp/anchorlens-hostile").exists()


@pytest.mark.parametrize("value", ["evil/kernel", "sdpa", "flash_attention_2", {"": "evil/kernel"}])
def test_a_configuration_cannot_choose_an_implementation(checkpoint, monkeypatch, value):
    from transformers.integrations import hub_kernels

    monkeypatch.setattr(
        hub_kernels, "get_kernel", lambda *_, **__: pytest.fail("a kernel was fetched")
    )
    keys = ("_attn_implementation", "attn_implementation", "_experts_implementation")
    more = {"_attn_implementation_internal": value, "use_kernels": True, "kernel_config": {}}
    edit(checkpoint, **dict.fromkeys(keys, value), **more)
    used: list[object] = []
    plain: Any = transformers.AutoModelForCausalLM.from_pretrained

    def watched(*args: Any, **options: Any) -> Any:
        model, report = plain(*args, **options)
        used.append(model.config._attn_implementation)
        return model, report

    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", watched)
    al.load_model(checkpoint, device="cpu")
    assert used == ["eager"]
    config = load_config(checkpoint)
    assert config._experts_implementation is None
    assert not hasattr(config, "use_kernels") and not hasattr(config, "kernel_config")


def test_a_number_of_labels_fills_no_memory(checkpoint):
    """transformers makes a table of so many labels, for the model and again for its tokenizer."""
    edit(checkpoint, num_labels=10**12, id2label={"x": "y"})
    model = al.load_model(checkpoint, device="cpu", check_parity=False)
    assert model.tokenizer is not None
    assert load_config(checkpoint).num_labels == 2


def test_layers_that_a_configuration_leaves_out_give_a_warning(checkpoint):
    edit(checkpoint, num_hidden_layers=1)
    with pytest.warns(
        UserWarning, match=r"weights have 3 layers, but config.json has num_hidden_layers=1"
    ):
        model = al.load_model(checkpoint, device="cpu")
    assert model.cfg.n_layers == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"name_or_path": "evil/x", "_name_or_path": "evil/x"},
        {"architectures": ["../../x", "os.system"]},
        {"base_model_tp_plan": {"layers.*": "evil"}, "tp_plan": "auto"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_names_of_other_code_in_a_configuration_change_nothing(checkpoint, changes):
    ids = torch.tensor([[5, 6, 7]])
    before = al.load_model(checkpoint, device="cpu")(ids)
    edit(checkpoint, **changes)
    assert torch.equal(al.load_model(checkpoint, device="cpu")(ids), before)


def test_keys_that_choose_code_are_dropped_at_any_depth():
    kept = {"num_hidden_layers": 2, "conv_kernel": [3], "kernel_size": 3, "hidden_act": "silu"}
    dropped = {
        "auto_map": {},
        "custom_pipelines": {},
        "text_attn_implementation": "x",
        "use_mamba_kernels": True,
        "kernel_config": {},
        "trust_remote_code": True,
        "code_revision": "main",
        "_use_flash_attention_2": True,
        "num_labels": 10**12,
        "id2label": {},
    }
    both = kept | dropped
    fields = {**both, "text_config": both, "parts": [both, {"inner": both}]}
    assert drop_code_keys(fields) == {**kept, "text_config": kept, "parts": [kept, {"inner": kept}]}


def gguf(*values: bytes, n_keys: int = 1, n_tensors: int = 0) -> bytes:
    """Return the bytes of a GGUF file with raw values for the key ``k``."""
    head = struct.pack("<4sIQQ", b"GGUF", 3, n_tensors, n_keys)
    return head + b"".join(struct.pack("<Q", 1) + b"k" + value for value in values) + b"\0" * 1000


def test_a_gguf_header_counts_no_more_than_its_bytes(tmp_path):
    """The reader of gguf would run through 2**40 values."""
    lists = struct.pack("<IIQ", 9, 9, 1) * 5000 + struct.pack("<IIQ", 9, 4, 0)
    files = {
        "numbers": gguf(struct.pack("<IIQ", 9, 0, 1 << 40)),
        "texts": gguf(struct.pack("<IIQ", 9, 8, 1 << 40)),
        "text": gguf(struct.pack("<IQ", 8, 1 << 40)),
        "nested": gguf(lists),
        "type": gguf(struct.pack("<II", 77, 0)),
        "keys": gguf(n_keys=1 << 40),
        "tensors": gguf(n_tensors=1 << 40, n_keys=0),
        "short": b"GGUF",
    }
    for name, content in files.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match="truncated, and cannot be read .* again"):
            check_gguf(path)


def test_errors_of_a_library_become_checkpoint_errors():
    class PanicException(BaseException):
        """As pyo3 raises it."""

    errors = (
        RecursionError("x"),
        ZeroDivisionError("x"),
        MemoryError(),
        ImportError("install x"),
        PanicException("at src/lib.rs"),
        RuntimeError("\x1b[31mred\x1b[0m\nline"),
    )
    for error in errors:
        with pytest.raises(CheckpointError) as caught, checkpoint_errors("It", "Do this."):
            raise error
        assert str(caught.value).isprintable()
    with pytest.raises(KeyboardInterrupt), checkpoint_errors("It", "Do this."):
        raise KeyboardInterrupt


@pytest.mark.slow
def test_a_truncated_checkpoint_is_an_error_or_loads(tmp_path):
    """Every file is cut at every sixteenth."""
    hf_logging.disable_progress_bar()
    whole = save_tiny("llama", tmp_path / "m")
    raw: list[str] = []
    for file in sorted(whole.iterdir()):
        content = file.read_bytes()
        for sixteenth in range(16):
            file.write_bytes(content[: len(content) * sixteenth // 16])
            try:
                al.load_model(whole, device="cpu")
            except al.AnchorlensError as error:
                if not str(error).isprintable():
                    raw.append(f"{file.name} {sixteenth}: {error}")
            except Exception as error:  # noqa: BLE001 - a raw error is the finding
                raw.append(f"{file.name} {sixteenth}: raw {type(error).__name__}: {error}")
        file.write_bytes(content)
    assert not raw, raw
