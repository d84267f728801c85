"""Without a package whose models are compared there is nothing to compare."""

from __future__ import annotations

from importlib.util import find_spec

_NEEDS = {"transformers": ["test_decoders.py", "test_encoders.py"], "ctranslate2": ["test_ctranslate2.py"]}

collect_ignore_glob = [name for package, names in _NEEDS.items() if find_spec(package) is None for name in names]
"""Directories of `transformers` are read and written without that library; CTranslate2's are written by its own."""
