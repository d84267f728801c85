"""Without `transformers` there is nothing to convert its models from."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("transformers") else ["test_decoders.py", "test_encoders.py"]
