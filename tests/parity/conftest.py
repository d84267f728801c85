"""Without `transformers` there is nothing to compare conversions with."""

from __future__ import annotations

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("transformers") else ["test_convert_*.py"]
