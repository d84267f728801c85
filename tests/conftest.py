"""Settings shared by all tests: nothing random, one thread, shapes checked at run time."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import HealthCheck, settings
from jaxtyping import install_import_hook

settings.register_profile(
    "regard",
    derandomize=True,
    deadline=None,
    database=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("regard")

# The shape annotations of model/ and search/ are checked here and cost nothing in use.
install_import_hook(["regard.model", "regard.search"], "beartype.beartype")

import torch  # noqa: E402 - after the hook

torch.set_num_threads(1)
