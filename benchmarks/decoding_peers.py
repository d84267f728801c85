"""What takes part in `decoding.py`: implementations that are loaded from a directory and translate lists of texts.

Each imports what it needs when it is loaded, so that a process holds that and nothing else. As a program, the peer of a
plan (JSON) translates one text:

    python benchmarks/decoding_peers.py PLAN TEXT
"""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

Output = tuple[str, int]
"""A translation, and how many tokens it has without the end."""


@dataclass(frozen=True)
class Plan:
    """An implementation, and how it is set up."""

    name: str
    kind: str
    model: str
    """Its directory."""
    beam: int
    alpha: float
    """Exponent of the length penalty, which each computes in its own way."""
    threads: int
    longest: int
    """The most tokens of an output, for those that know no limit by the length of the source."""
    options: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Peer(ABC):
    """An implementation, loaded."""

    ways: ClassVar[Sequence[tuple[int, str]]] = ((0, ""),)
    """Batches that it may make, of so many of what; the fastest is taken."""

    @abstractmethod
    def __init__(self, plan: Plan) -> None: ...

    @abstractmethod
    def translate(self, texts: list[str], way: tuple[int, str]) -> list[Output]: ...

    def fastest(self, texts: list[str]) -> tuple[int, str]:
        """The way that takes the least time for these texts, which are translated once before that."""
        self.translate(texts, self.ways[0])
        return min(self.ways, key=lambda way: self._seconds(texts, way)) if len(self.ways) > 1 else self.ways[0]

    def _seconds(self, texts: list[str], way: tuple[int, str]) -> float:
        begin = time.perf_counter()
        self.translate(texts, way)
        return time.perf_counter() - begin


class Regard(Peer):
    """Options: executor, precision, workers, and the fields of `SearchSettings`."""

    def __init__(self, plan: Plan) -> None:
        # What the command `regard` does for its process.
        os.environ.update(GOMP_SPINCOUNT="3000", THP_MEM_ALLOC_ENABLE="1")
        import torch

        import regard

        torch.set_num_threads(1)
        self.search = {"beam": plan.beam, "alpha": plan.alpha} | plan.options
        used = {name: self.search.pop(name) for name in ("executor", "precision") if name in self.search}
        self.translator = regard.load(plan.model, device="cpu", workers=self.search.pop("workers", plan.threads))
        self.translator.use(**used)

    def translate(self, texts: list[str], way: tuple[int, str]) -> list[Output]:
        found = [each.best for each in self.translator.hypotheses(texts, **self.search)]
        return [(each.text, len(each.ids)) for each in found]


class CTranslate2(Peer):
    """Options: precision, workers (each with so many threads that all threads are used)."""

    ways = tuple((size, "examples") for size in (16, 32, 64)) + tuple((size, "tokens") for size in (512, 1024, 2048))

    def __init__(self, plan: Plan) -> None:
        sys.modules["torch"] = None  # who deploys it has none, and it would be imported where there is one
        import ctranslate2
        from tokenizers import Tokenizer

        workers = plan.options["workers"]
        self.plan = plan
        self.model = ctranslate2.Translator(
            plan.model,
            device="cpu",
            compute_type=plan.options["precision"],
            inter_threads=workers,
            intra_threads=plan.threads // workers,
        )
        self.source, self.target = (Tokenizer.from_file(str(path)) for path in _tokenizers(plan.model))

    def translate(self, texts: list[str], way: tuple[int, str]) -> list[Output]:
        size, kind = way
        results = self.model.translate_batch(
            [encoding.tokens for encoding in self.source.encode_batch(texts)],
            beam_size=self.plan.beam,
            length_penalty=self.plan.alpha,
            max_batch_size=size,
            batch_type=kind,
            max_decoding_length=self.plan.longest,
        )
        ids = [[self.target.token_to_id(token) for token in result.hypotheses[0]] for result in results]
        return list(zip(self.target.decode_batch(ids), map(len, ids), strict=True))


def _tokenizers(directory: str) -> list[Path]:
    paths = [Path(directory, f"tokenizer.{side}.json") for side in ("source", "target")]
    return paths if paths[0].exists() else [Path(directory, "tokenizer.json")] * 2


class Transformers(Peer):
    ways = tuple((size, "examples") for size in (8, 16, 32, 64))

    def __init__(self, plan: Plan) -> None:
        import torch
        from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
        from transformers.utils import logging

        logging.disable_progress_bar()
        torch.set_num_threads(plan.threads)
        self.search = {"num_beams": plan.beam, "do_sample": False, "max_new_tokens": plan.longest}
        if plan.beam > 1:
            self.search["length_penalty"] = plan.alpha
        self.tokenizer = AutoTokenizer.from_pretrained(plan.model)
        self.model = AutoModelForSeq2SeqLM.from_pretrained(plan.model).eval()
        self.without = {self.model.config.pad_token_id, self.model.config.eos_token_id}

    def translate(self, texts: list[str], way: tuple[int, str]) -> list[Output]:
        import torch

        size, _ = way
        ids = self.tokenizer(texts)["input_ids"]
        order = sorted(range(len(texts)), key=lambda index: -len(ids[index]))
        outputs: dict[int, Output] = {}
        for start in range(0, len(order), size):
            chosen = order[start : start + size]
            batch = self.tokenizer.pad({"input_ids": [ids[index] for index in chosen]}, return_tensors="pt")
            with torch.inference_mode():
                found = self.model.generate(**batch, **self.search)
            rows = [[token for token in row[1:] if token not in self.without] for row in found.tolist()]
            decoded = self.tokenizer.batch_decode(rows, skip_special_tokens=True)
            outputs |= dict(zip(chosen, zip(decoded, map(len, rows), strict=True), strict=True))
        return [outputs[index] for index in range(len(texts))]


PEERS: dict[str, type[Peer]] = {"regard": Regard, "ctranslate2": CTranslate2, "transformers": Transformers}


def main() -> None:
    plan, text = Plan(**json.loads(sys.argv[1])), sys.argv[2]
    peer = PEERS[plan.kind](plan)
    print(peer.translate([text], peer.ways[0])[0][0])


if __name__ == "__main__":
    main()
