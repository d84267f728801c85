"""How near converted models are to those of Hugging Face transformers: the table of the parity tests, in numbers.

Each row is a small random model of `transformers`, stored, read by regard and written again. Logits are compared in
float32 over padded batches (the largest difference at real positions), whole and through the cache in pieces. Greedy
and beam search are compared without an end, where both keep the same number of hypotheses. Back: the model that
`transformers` loads from what regard wrote, and how many weights in the file differ in any bit: rows and biases that
nothing reads are written as zeros, what is lacking too, and Gemma's normalisations are rounded when one is added.

    python benchmarks/parity.py
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

# In the place of this folder, whose file of that name would be found first.
sys.path[0] = str(Path(__file__).parent.parent / "tests")
pairs = import_module("parity.conversion")
decoders = import_module("parity.decoders")
pair_tests = import_module("parity.test_convert_encoder_decoders")
decoder_tests = import_module("parity.test_convert_decoders")
encoder_tests = import_module("parity.test_convert_encoders")


@dataclass(frozen=True)
class Kind:
    """How models of one family are asked."""

    cases: dict[str, Any]
    theirs: Callable[[Any], Tensor]
    """The logits of a foreign model."""
    ours: Callable[[Any, Any], Tensor]
    """Ours: of our model, and of the foreign one for the batch that fits it."""
    cached: Callable[[Any, Any], Tensor] | None = None
    search: Callable[[Any, Any, int], bool] | None = None
    """Whether a search of a beam finds the same in ours and theirs."""


def main() -> None:
    torch.set_num_threads(1)
    table = Table("model", "difference", "cached", "greedy", "beam", "back", "weights changed")
    for row in rows():
        table.add_row(*row)
    Console(width=120).print(table)


def rows() -> Iterator[tuple[str, ...]]:
    for kind in KINDS:
        for name, case in kind.cases.items():
            with tempfile.TemporaryDirectory() as folder:
                conversion = pairs.Conversion(case, Path(folder))
                yield (name, *measured(kind, conversion))


def measured(kind: Kind, conversion: Any) -> Iterator[str]:
    theirs = kind.theirs(conversion.foreign)
    yield largest(kind.ours(conversion.own, conversion.foreign), theirs)
    yield "" if kind.cached is None else largest(kind.cached(conversion.own, conversion.foreign), theirs)
    for beam in (1, 4):
        same = None if kind.search is None else kind.search(conversion.own, conversion.foreign, beam)
        yield {None: "", True: "equal", False: "NOT EQUAL"}[same]
    yield largest(kind.theirs(conversion.back), theirs)
    yield f"{len(conversion.changed)} of {len(pairs.tensors(conversion.stored))}"


def largest(left: Tensor, right: Tensor) -> str:
    difference = float((left - right).abs().max())
    return "0" if difference == 0 else f"{difference:.0e}"


def pair_search(own: Any, foreign: Any, beam: int) -> bool:
    batch = pairs.pairs(foreign)
    return pairs.own_output(own, batch, beam, 7, False) == pairs.foreign_output(foreign, batch, beam, 7, False)


def decoder_search(own: Any, foreign: Any, beam: int) -> bool:
    foreign.generation_config = pairs.transformers.GenerationConfig()
    left = decoders.batch("left")
    ours = decoder_tests.our_text(own, *left, beam, False)
    return ours == decoder_tests.their_text(foreign, *left, beam, False)


def real(logits_BTV: Tensor, real_BT: Tensor) -> Tensor:
    """At real positions; logits of a whole text are left alone."""
    return logits_BTV[real_BT] if logits_BTV.dim() == 3 else logits_BTV


def image_logits(model: Any) -> Tensor:
    with torch.inference_mode():
        return model(pixel_values=encoder_tests.images(model.config)).logits


def own_image_logits(own: Any, foreign: Any) -> Tensor:
    with torch.inference_mode():
        return own.logits(own.encode(encoder_tests.images(foreign.config)))


LEFT, RIGHT = decoders.batch("left"), encoder_tests.batch("right")
KINDS = (
    Kind(
        {case.name: case for case in pair_tests.CASES},
        theirs=lambda model: pairs.foreign_logits(model, pairs.pairs(model)),
        ours=lambda own, foreign: pairs.own_logits(own, pairs.pairs(foreign)),
        cached=lambda own, foreign: pairs.own_logits(own, pairs.pairs(foreign), (3, 1, 2)),
        search=pair_search,
    ),
    Kind(
        decoder_tests.CASES,
        theirs=lambda model: real(decoders.their_logits(model, *LEFT), LEFT[1]),
        ours=lambda own, _: real(decoders.our_logits(own, *LEFT), LEFT[1]),
        cached=lambda own, _: real(decoders.our_logits(own, *LEFT, [4, 1, 6]), LEFT[1]),
        search=decoder_search,
    ),
    Kind(
        encoder_tests.CASES,
        theirs=lambda model: real(encoder_tests.their_logits(model, *RIGHT), RIGHT[1]),
        ours=lambda own, _: real(encoder_tests.our_logits(own, *RIGHT), RIGHT[1]),
    ),
    Kind({f"vit, {name}": case for name, case in encoder_tests.IMAGES.items()}, image_logits, own_image_logits),
)


if __name__ == "__main__":
    main()
