"""The real command, and a run that is over soon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def regard(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """Run the real command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "regard", *map(str, arguments)],
        input=stdin, capture_output=True, timeout=300, check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"} | environment,
    )  # fmt: skip


def options(corpus: Path, steps: int, every: int) -> list[str | Path]:
    """Options of a run that learns the corpus with a small model on one thread."""
    files = [
        word
        for part, prefix in (("train", ""), ("dev", "dev-"), ("test", "test-"))
        for word in (f"--{prefix}source", corpus / f"{part}.en", f"--{prefix}target", corpus / f"{part}.de")
    ]
    return [
        *files,
        "--model.d-model", "48", "--model.d-ff", "96", "--model.heads", "2",
        "--model.encoder-layers", "2", "--model.decoder-layers", "2", "--model.dropout", "0.1",
        "--tokenizer.size", "320", "--batches.tokens", "1000",
        "--training.steps", str(steps), "--training.threads", "1", "--training.schedule.warmup-steps", "40",
        "--validation.every", str(every),
    ]  # fmt: skip
