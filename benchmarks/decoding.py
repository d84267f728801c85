"""Translating speed, beside other implementations of the same model on the same texts, in one run.

    python benchmarks/decoding.py --model DIR --source FILE [--reference FILE] [--tokenize none] [--beam 4 1]
    python benchmarks/decoding.py --base [--forced 25] [--regard executor=torch --regard precision=float32,workers=1]

The peers are CTranslate2 and Hugging Face transformers, both with what `regard convert` makes of the model; one that
cannot compute it is left out. Without `--model`, a random model of the paper's base size with a vocabulary of 8,000 is
made, and without `--source`, texts of random words of caption length. Each implementation has a process of its own, set
up as its users would have it; it first finds out which batches, of texts sorted by length, are the fastest for it. Then
they take turns, so that a change in the machine's speed meets all.

The clock runs from texts to texts. Columns: `tokens/s`, of outputs without their ends; `as first`, the share of outputs
that are those of the first row; `p50` and `p99`, of the time for a sentence where they come one by one; `process`, the
time of a new process that translates one sentence; `peak`, the memory of the process that translated all.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from decoding_peers import PEERS, Output, Plan
from rich.console import Console
from rich.table import Table

VOCABULARY = 8000
SAMPLE = 200
"""So many texts are translated to find out which batches are the fastest."""
SINGLES = 100
"""Sentences that are translated one by one."""
LONGEST = 256
"""Tokens of an output, where an implementation knows no limit by the length of its source."""
NEVER = -50.0
"""The bias of tokens that a random model is not to choose."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="directory of a trained model")
    parser.add_argument("--base", action="store_true", help="a random model of the paper's base size")
    parser.add_argument("--forced", type=int, help="of that model, every output has exactly so many tokens")
    parser.add_argument("--source", type=Path)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--tokenize", choices=("none", "13a"), default="13a", help="of BLEU")
    parser.add_argument("--sentences", type=int, help="only the first so many")
    parser.add_argument("--words", type=int, help="cut the running text of the source into texts of so many words")
    parser.add_argument("--beam", type=int, nargs="+", default=[4, 1])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=PEERS, nargs="+", default=list(PEERS))
    parser.add_argument(
        "--regard",
        action="append",
        default=[],
        metavar="OPTIONS",
        help="one more row of regard: executor=torch,precision=float32,workers=1, fields of SearchSettings",
    )
    options = parser.parse_args()
    if (options.model is None) != (options.base or options.forced is not None):
        parser.error("give either --model, or --base or --forced")
    if options.words is not None and options.reference is not None:
        parser.error("--words makes other texts, to which there is no --reference")
    texts = list(made_up(1000)) if options.source is None else lines(options.source)
    if options.words is not None:
        texts = list(of_words(texts, options.words))
    texts = texts[: options.sentences]
    references = None if options.reference is None else lines(options.reference)[: options.sentences]
    with tempfile.TemporaryDirectory() as folder:
        if options.model is None:
            options.model = Path(folder, "base")
            elsewhere(random_model, options, texts)
        directories = {kind: converted(kind, options, Path(folder)) for kind in options.only}
        for beam in options.beam:
            plans = list(participants(directories, beam, options))
            show(compete(plans, texts, options.rounds), references, beam, options)


def participants(directories: dict[str, dict[str, str]], beam: int, options: argparse.Namespace) -> Iterator[Plan]:
    """What takes part, in the order of the rows."""
    alpha = json.loads((options.model / "generation.json").read_text(encoding="utf-8"))["alpha"]
    shared = {"beam": beam, "alpha": alpha, "threads": options.threads, "longest": options.forced or LONGEST}
    for directory in directories.get("regard", {}).values():
        # The model itself knows no more positions than are forced.
        forced = {} if options.forced is None else {"extra_tokens": options.forced, "retry": False}
        for text in ["", *options.regard]:
            yield Plan(f"regard {text}", "regard", directory, options=forced | parsed(text), **shared)
    for precision, directory in directories.get("ctranslate2", {}).items():
        for workers in sorted({1, options.threads}, reverse=True):
            name = f"CTranslate2 {precision}, {workers} x {options.threads // workers}"
            yield Plan(name, "ctranslate2", directory, options={"precision": precision, "workers": workers}, **shared)
    for name, directory in directories.get("transformers", {}).items():
        yield Plan(f"transformers {name}", "transformers", directory, **shared)


def parsed(text: str) -> dict[str, Any]:
    """`workers=1,precision=int8` as options."""
    pairs = [each.split("=", 1) for each in text.split(",") if each]
    return {name: value if value.isalnum() and not value.isdigit() else json.loads(value) for name, value in pairs}


def converted(kind: str, options: argparse.Namespace, folder: Path) -> dict[str, str]:
    """The directories that an implementation reads, by what they are called in its rows."""
    if kind == "regard":
        return {"": str(options.model)}
    if kind == "ctranslate2":
        more = {precision: ("--to", "ctranslate2", "--quantization", precision) for precision in ("float32", "int8")}
    else:
        more = {kind: ("--to", "huggingface")}
    found = {}
    for name, arguments in more.items():
        command = [sys.executable, "-m", "regard", "convert", str(options.model), str(folder / name), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"{kind} is left out: {done.stderr.strip()}", file=sys.stderr)
        elif kind == "transformers":
            found[architecture(folder / name, options)] = str(folder / name)
        else:
            found[name] = str(folder / name)
    return found


def architecture(directory: Path, options: argparse.Namespace) -> str:
    """What the model is to transformers. Sources may be longer than what is forced, and both have one bound there."""
    path = directory / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    if options.forced is not None:
        config["max_position_embeddings"] = 1024
        path.write_text(json.dumps(config), encoding="utf-8")
    return str(config["model_type"])


@dataclass
class Result:
    """What is known of a participant."""

    plan: Plan
    way: tuple[int, str] = (0, "")
    seconds: float = 0.0
    """Of all rounds."""
    outputs: list[Output] = field(default_factory=list)
    """Of one round."""
    singles: list[float] = field(default_factory=list)
    processes: list[float] = field(default_factory=list)
    peak: float = 0.0
    """GiB."""


def compete(plans: Sequence[Plan], texts: list[str], rounds: int) -> list[Result]:
    """Let all take turns."""
    context = multiprocessing.get_context("spawn")
    results, channels = [Result(plan) for plan in plans], []
    for result in results:
        ours, theirs = context.Pipe()
        context.Process(target=take_part, args=(result.plan, texts[:SAMPLE], theirs), daemon=True).start()
        result.way = ours.recv()
        channels.append(ours)
    singles = (texts * SINGLES)[:SINGLES]
    for number in range(rounds):
        for result, channel in zip(results, channels, strict=True):
            channel.send(texts)
            seconds, result.outputs = channel.recv()
            result.seconds += seconds
        for result, channel in zip(results, channels, strict=True):
            for text in singles[number::rounds]:
                channel.send([text])
                result.singles.append(channel.recv()[0])
        for result in results:
            result.processes.append(process(result.plan, texts[0]))
    for result, channel in zip(results, channels, strict=True):
        channel.send(None)
        result.peak = channel.recv()
    return results


def take_part(plan: Plan, sample: list[str], channel: Connection) -> None:
    """One implementation in its process: translate what comes."""
    peer = PEERS[plan.kind](plan)
    way = peer.fastest(sample)
    channel.send(way)
    while (texts := channel.recv()) is not None:
        begin = time.perf_counter()
        outputs = peer.translate(texts, way)
        channel.send((time.perf_counter() - begin, outputs))
    channel.send(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)


def process(plan: Plan, text: str) -> float:
    """The seconds of a new process that translates one text."""
    begin = time.perf_counter()
    command = [sys.executable, str(Path(__file__).with_name("decoding_peers.py")), plan.to_json(), text]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - begin


def show(results: list[Result], references: list[str] | None, beam: int, options: argparse.Namespace) -> None:
    count, first = len(results[0].outputs), [text for text, _ in results[0].outputs]
    model = "a random model" if options.base or options.forced is not None else options.model
    table = Table(
        *("implementation", "batch", "sentences/s", "tokens/s", "BLEU", "as first", "p50 ms", "p99 ms", "process s"),
        "peak GiB",
        title=f"{model}, beam {beam}, {count} sentences, {platform.machine()}, {options.threads} threads",
    )
    for result in results:
        rate = options.rounds / result.seconds
        texts = [text for text, _ in result.outputs]
        alike = sum(ours == theirs for ours, theirs in zip(texts, first, strict=True)) / count
        percentiles = quantiles(result.singles, n=100, method="inclusive")
        table.add_row(
            result.plan.name,
            " ".join(map(str, result.way)) if any(result.way) else "",
            f"{count * rate:,.1f}",
            f"{sum(tokens for _, tokens in result.outputs) * rate:,.0f}",
            "" if references is None else f"{bleu(texts, references, options.tokenize):.2f}",
            f"{alike:.0%}",
            f"{1000 * percentiles[49]:.1f}",
            f"{1000 * percentiles[98]:.1f}",
            f"{median(result.processes):.2f}",
            f"{result.peak:.2f}",
        )
    Console(width=150).print(table)


def bleu(texts: list[str], references: list[str], tokenize: str) -> float:
    from sacrebleu.metrics import BLEU

    return float(BLEU(tokenize=tokenize, force=True).corpus_score(texts, [references]).score)


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


def of_words(texts: list[str], count: int) -> Iterator[str]:
    words = " ".join(texts).split()
    for begin in range(0, len(words) - count + 1, count):
        yield " ".join(words[begin : begin + count])


def made_up(count: int) -> Iterator[str]:
    generator = random.Random(1)
    words = ["".join(generator.choices("abcdefghijklmnoprstuvwz", k=generator.randint(2, 9))) for _ in range(6000)]
    weights = [1 / rank for rank in range(1, 6001)]
    for _ in range(count):
        yield " ".join(generator.choices(words, weights, k=generator.randint(6, 18)))


def elsewhere(function: Any, *arguments: Any) -> None:
    """Call a function in a process of its own, so that this one, whose size its children inherit, stays small."""
    made = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    made.start()
    made.join()
    if made.exitcode:
        sys.exit("the model could not be made")


def random_model(options: argparse.Namespace, texts: list[str]) -> None:
    """Write a random model of the base size; where outputs are forced, it never ends one before its last position."""
    import torch

    from regard.model.presets import preset
    from regard.model.transformer import EncoderDecoder
    from regard.pipelines import Translator, write_directory
    from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

    tokenizer = Tokenizer.learn([*texts, *made_up(20_000)], TokenizerSettings(size=VOCABULARY))
    changes: dict[str, Any] = {"output_bias": True}
    if options.forced is not None:
        changes |= {"max_length": options.forced, "source_max_length": 1024}
    torch.manual_seed(1)
    settings = preset("paper-base").model.model_copy(update=changes)
    model = EncoderDecoder(settings, tokenizer.size, tokenizer.size)
    banned = [*tokenizer.forbidden, *([] if options.forced is None else [tokenizer.eos])]
    assert model.output_bias is not None
    with torch.no_grad():
        model.output_bias[banned] = NEVER
    write_directory(options.model, Translator(model, TokenizerPair(tokenizer, tokenizer)), "# A random model\n")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")  # said, so that none warns of it
    main()
