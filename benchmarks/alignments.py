"""Which head, or which layer, of a model says best what stands for what: each against alignments by lexica.

    python benchmarks/alignments.py runs/mine

Nothing is trained but the two lexica of the run's training text. The links are of tokens, those of its validation text.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from regard.data.alignment import Link, align_both_ways
from regard.data.arrow import Ids
from regard.data.dataset import PairDataset
from regard.data.lexicon import learn_lexicon
from regard.evaluation.alignment import linked_tokens
from regard.evaluation.alignment_error import AlignmentErrors
from regard.model.settings import AlignmentHead
from regard.pipelines import Translator

BATCH = 32

Pair = tuple[Ids, Ids]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="directory of a training run")
    directory: Path = parser.parse_args().run
    torch.set_num_threads(1)
    translator = Translator.load(directory, "cpu")
    files = (directory / "data" / f"{part}.arrow" for part in ("train", "dev"))
    train, dev = (PairDataset.open(path, translator.tokenizers) for path in files)
    pairs = sorted(map(dev.pair, range(len(dev))), key=lambda pair: len(pair[0]))
    reference = by_lexica(train, translator, pairs)
    model = translator.model
    print(f"alignment error rate of {len(pairs):,} pairs, by layer of the decoder, counted from 0")
    print("layer" + "".join(f"{f'head {head}':>9}" for head in range(model.settings.heads)) + f"{'mean':>9}")
    for layer in range(len(model.decoder)):
        heads = [AlignmentHead(layer=layer, head=head) for head in (*range(model.settings.heads), None)]
        print(f"{layer:<5}" + "".join(f"{error(translator, pairs, reference, head):9.3f}" for head in heads))


def by_lexica(train: PairDataset, translator: Translator, pairs: list[Pair]) -> list[list[Link]]:
    sources, targets = train.sides
    sizes = translator.tokenizers.source.size, translator.tokenizers.target.size
    forward = learn_lexicon(sources, targets, *sizes, say=print)
    backward = learn_lexicon(targets, sources, *reversed(sizes), say=print)
    return align_both_ways(forward, backward, *zip(*pairs, strict=True))


def error(translator: Translator, pairs: list[Pair], reference: list[list[Link]], head: AlignmentHead) -> float:
    errors = AlignmentErrors()
    for start in range(0, len(pairs), BATCH):
        sources, targets = ([ids.tolist() for ids in side] for side in zip(*pairs[start : start + BATCH], strict=True))
        found = linked_tokens(translator.model, translator.tokenizers, head, sources, targets)
        for links, expected in zip(found, reference[start : start + BATCH], strict=True):
            errors.add(links, expected)
    return errors.rate


if __name__ == "__main__":
    main()
