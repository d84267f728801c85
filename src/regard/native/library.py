"""The compiled library: found where the package was installed with a C++ compiler, and fit for this CPU.

The package is built with one library for each kind of CPU (`pyproject.toml`); all are of the same source. Where none
was built, or none fits, everything works without, by PyTorch.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_float, c_int, c_int64, c_uint32, c_uint64, c_void_p
from functools import cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

from regard.errors import JobError

KINDS = "_avx512", "_avx2", "_plain"
"""Best first."""

INTERFACE = 4
"""Changes with what the functions take or give, here and in `library.cpp`."""

FUNCTIONS: dict[str, tuple[type | None, list[type]]] = {
    "regard_interface": (c_int, []),
    "regard_message": (c_char_p, []),
    "regard_runs_here": (c_int, []),
    "regard_fast_bytes": (c_int, []),
    "regard_fast_pairs": (c_int, []),
    "regard_lanes": (c_int, []),
    "regard_builder": (c_void_p, []),
    "regard_tensor": (c_int, [c_void_p, c_char_p, c_void_p, c_int64, c_int64]),
    "regard_builder_free": (None, [c_void_p]),
    "regard_model": (c_int64, [c_void_p, c_void_p]),
    "regard_model_free": (None, [c_void_p]),
    "regard_session": (c_int64, [c_void_p]),
    "regard_session_free": (None, [c_void_p]),
    "regard_join": (c_int, [c_void_p, c_void_p, c_void_p, c_int64, c_void_p, c_void_p]),
    "regard_reorder": (c_int, [c_void_p, c_void_p, c_int64, c_void_p, c_int64]),
    "regard_step": (c_int, [c_void_p, c_void_p, c_void_p]),
    "regard_logits": (c_int, [c_void_p, c_void_p]),
    "regard_candidates": (c_int, [c_void_p, c_int64, c_void_p, c_void_p, c_void_p]),
    "regard_cross_entropy": (
        c_int,
        [c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_float, c_float, *[c_void_p] * 3, c_int64, c_int],
    ),
    "regard_drop": (c_int, [c_void_p, c_void_p, c_int64, c_uint64, c_uint32, c_float, c_int64]),
    "regard_attention": (c_int, [c_void_p] * 7 + [c_int64]),
    "regard_attention_back": (c_int, [c_void_p] * 9 + [c_int64]),
}
"""What the library has: result and arguments."""


class NativeError(JobError):
    """The library says that something cannot be done."""


@cache
def library() -> ctypes.CDLL | None:
    """The library for this CPU, or None: none was built, or `REGARD_NATIVE=0` turns it off.

    `REGARD_NATIVE=avx2` takes that kind and no other, to see what it does on a CPU that could do more.
    """
    asked = os.environ.get("REGARD_NATIVE")
    if asked == "0":
        return None
    for kind in (f"_{asked}",) if f"_{asked}" in KINDS else KINDS:
        for suffix in EXTENSION_SUFFIXES:
            path = Path(__file__).with_name(kind + suffix)
            found = _load(path) if path.exists() else None
            if found is not None:
                return found
    return None


def serves(*tensors: Tensor) -> bool:
    """Whether the library is there, and these are what its functions for training read: float32 on a CPU.

    What `torch.compile` traces has no memory yet.
    """
    plain = all(each.device.type == "cpu" and each.dtype == torch.float32 for each in tensors)
    return plain and library() is not None and not torch.compiler.is_compiling()


def kind() -> str:
    """The CPU that the library in use was compiled for, in words."""
    loaded = library()
    return "none" if loaded is None else Path(loaded._name).name.split(".")[0].strip("_")


def _load(path: Path) -> ctypes.CDLL | None:
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError:
        return None  # built for another machine
    for name, (result, arguments) in FUNCTIONS.items():
        function = getattr(loaded, name, None)
        if function is None:
            return None  # built from an older source
        function.restype, function.argtypes = result, arguments
    return loaded if loaded.regard_interface() == INTERFACE and loaded.regard_runs_here() else None


def check(result: int, loaded: ctypes.CDLL) -> int:
    """What a function of the library gave, or its error."""
    if result == -1:
        raise NativeError(loaded.regard_message().decode())
    return result


def fast_bytes() -> bool:
    """Whether this CPU multiplies bytes faster than floats."""
    loaded = library()
    return loaded is not None and bool(loaded.regard_fast_bytes())


def fast_pairs() -> bool:
    """Whether this CPU multiplies pairs of bfloat16 numbers, and faster than floats."""
    loaded = library()
    return loaded is not None and bool(loaded.regard_fast_pairs())
