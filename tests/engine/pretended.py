"""CUDA devices that are only said to be there: real numbers, on the CPU, under the rules that torch
has for devices.

What lies on a pretended device says so (``x.device``), and an operation on tensors of two devices
is an error, as it is on cards; indices on the CPU and single numbers from there are let through, as
they are there. Account is kept of copies between devices. So a model that is spread over devices
can be run, and its numbers compared to the bit with those of one device.
"""

import sys
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map
from transformer_lens import HookedTransformer

from anchorlens.engine.cone_layout import JOINT_ATTENTION
from anchorlens.models.blocks import MLP_SLICE
from anchorlens.models.devices import index_on
from anchorlens.models.read import READ_SLICE

CPU = torch.device("cpu")
aten = torch.ops.aten
_INDEXED = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
_PINNED = {aten.pin_memory.default, aten._pin_memory.default}


class There(torch.Tensor):
    """Tensor on a pretended device.

    To torch's own code below Python it is a meta tensor, because a build without CUDA can do
    nothing with one on CUDA.

    Attributes:
        inner: Tensor with the numbers, on the CPU.
        place: Device that it pretends to be on.
    """

    @staticmethod
    def __new__(cls, inner, place):
        like = {
            "strides": inner.stride(),
            "storage_offset": inner.storage_offset(),
            "dtype": inner.dtype,
            "device": "meta",
        }
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, **like)

    def __init__(self, inner, place):
        self.inner, self.place = inner, place

    device = property(lambda self: self.place)
    is_cuda = property(lambda self: True)
    is_meta = is_cpu = property(lambda self: False)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _done(func, args, kwargs or {}, [])

    def __getitem__(self, key):
        return super().__getitem__(_listed(key))

    def __setitem__(self, key, value):
        super().__setitem__(_listed(key), value)

    def tolist(self):
        """Return the values as a list, which torch refuses for tensors of other classes."""
        return self.inner.tolist()

    def __repr__(self):
        return f"There({self.inner!r}, {self.device})"


class Pretended(TorchDispatchMode):
    """While it is active there are pretended devices.

    Attributes:
        moves: Copies between devices: from, to, dtype and shape.
    """

    def __init__(self):
        super().__init__()
        self.moves = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        return _done(func, args, kwargs or {}, self.moves)

    def streams(self, width):
        """Devices between which tables of numbers of this width were moved, in order."""
        return [
            (str(a), str(b))
            for a, b, dtype, shape in self.moves
            if dtype.is_floating_point and shape[-1:] == (width,)
        ]


def _done(func, args, kwargs, moves):
    if func in _PINNED:
        return args[0]
    names = [argument.name for argument in func._schema.arguments]
    asked = dict(zip(names, args, strict=False)) | kwargs
    to = asked.get("device")
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    places = {x.device for x in tensors if isinstance(x, There)}
    if to is not None and to.type == "meta":
        if not places:  # a model without weights; or what torch's own code below Python makes for a tensor there
            out = func(*args, **kwargs)
            if not tensors and isinstance(out, torch.Tensor):
                out.numbers = cache(partial(func, *args, **kwargs | {"device": CPU}))
            return out
        to = next(iter(places))
    if func is aten._to_copy.default:
        return _copied(args[0], to or args[0].device, asked, moves)
    if func is aten.copy_.default:
        if args[0].device != args[1].device:
            moves.append((args[1].device, args[0].device, args[1].dtype, args[1].shape))
        _inner(args[0]).copy_(_inner(args[1]))
        return args[0]
    assert len(places) <= 1, f"{func} mixes {sorted(map(str, places))}"
    here = [x for x in tensors if not isinstance(x, There) and not hasattr(x, "numbers")]
    assert not places or not any(x.is_meta for x in here), f"{func} gets a tensor without numbers"
    if (
        places and func in _INDEXED
    ):  # tables of indices may lie on the CPU, what they look into may not
        here = [
            x
            for x in (args[0], *args[2:3])
            if isinstance(x, torch.Tensor) and not isinstance(x, There)
        ]
    assert not places or not any(x.ndim for x in here), f"{func} gets a table that lies on the CPU"
    # What torch's own code made without a place of its own lies where the operation before was.
    where = to or next(iter(places), _done.last if len(here) < len(tensors) else CPU)
    if to is not None:
        assert names.index("device") >= len(args)
        kwargs = kwargs | {"device": CPU}
    _done.last = where
    own = {id(_inner(x)): x for x in tensors}
    out = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    if where.type == "cpu":
        return out
    return tree_map(
        lambda x: (
            (own[id(x)] if id(x) in own else There(x, where)) if isinstance(x, torch.Tensor) else x
        ),
        out,
    )


_done.last = CPU


def _listed(key):
    """Lists of indices as tables on the CPU: torch would make them where it takes the tensor to be,
    without their numbers.
    """
    one = torch.tensor(key) if isinstance(key, list) else key
    return (
        tuple(torch.tensor(k) if isinstance(k, list) else k for k in one)
        if isinstance(one, tuple)
        else one
    )


def _inner(x):
    return x.inner if isinstance(x, There) else x.numbers() if hasattr(x, "numbers") else x


def _copied(x, to, asked, moves):
    if x.device != to:
        moves.append((x.device, to, x.dtype, x.shape))
    out = _inner(x).to(dtype=asked.get("dtype") or x.dtype, copy=True)
    return out if to.type == "cpu" else There(out, to)


@contextmanager
def pretended(count=2, free=None):
    """So many CUDA devices in a ``with`` block, with so much free memory each; sizes of slices are
    those of the CPU.
    """
    free = free or [4 * 2**30] * count
    name = [f"Pretended {i}" for i in range(count)]
    devices = {
        "_lazy_init": lambda: None,
        "is_available": lambda: True,
        "device_count": lambda: count,
        "mem_get_info": lambda device: (free[torch.device(device).index], 2 * max(free)),
        "memory_allocated": lambda device: 0,
        "memory_reserved": lambda device: 0,
        "get_per_process_memory_fraction": lambda device: 1.0,
        "get_device_name": lambda device: name[torch.device(device).index],
        "empty_cache": lambda: None,
    }
    with ExitStack() as stack:
        for key, value in devices.items():
            stack.enter_context(mock.patch.object(torch.cuda, key, value))
        for slices in (MLP_SLICE, READ_SLICE, JOINT_ATTENTION):
            stack.enter_context(mock.patch.dict(slices, {"cuda": slices["cpu"]}))
        # Else a module that moves gives its parameters new numbers, and no other device.
        stack.callback(torch.__future__.set_overwrite_module_params_on_conversion, False)
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        # TransformerLens lets no other class of tensors begin in the middle.
        kind = lambda x: torch.Tensor if isinstance(x, There) else type(x)  # noqa: E731
        module = sys.modules[HookedTransformer.__module__]
        stack.enter_context(mock.patch.object(module, "type", kind, create=True))
        index_on.cache_clear()  # what lies on pretended devices must not outlive them
        stack.callback(index_on.cache_clear)
        yield stack.enter_context(Pretended())


__all__ = ["CPU", "Pretended", "There", "pretended"]
