"""Each kind of library in turn, in place of the best one."""

from __future__ import annotations

import ctypes

import pytest

from native.built import libraries
from regard.native import attention, dropout, loss
from regard.native.library import KINDS


@pytest.fixture(params=KINDS)
def loaded(request, monkeypatch: pytest.MonkeyPatch) -> ctypes.CDLL:
    found = libraries().get(request.param)
    if found is None:
        pytest.skip(f"no library {request.param} for this CPU")
    for module in (attention, dropout, loss):
        monkeypatch.setattr(module, "library", lambda: found)
    return found
