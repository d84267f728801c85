"""Does a run that was killed end as the one that was not? And one whose disk was full?

Trains a tiny translator without a break, then again and again with SIGKILL at a random moment: while the text is being
prepared, in the middle of steps, while a checkpoint is being saved, while the model is being chosen and written; and
with a disk that is full from such a moment on (a tmpfs where this process may mount one, else with files of limited
size). Each run is resumed to its end, and everything that it leaves is compared byte for byte with what the unbroken
one left; only times may differ.

    python benchmarks/kills.py --kills 20 --full-disks 8 --seed 1
"""

from __future__ import annotations

import argparse
import hashlib
import json
import logging
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

STEPS, EVERY = 48, 6
PATIENCE = 600.0
TIMES = {"seconds", "target_tokens_per_second"}
"""What may differ, by its name in JSON."""

Moment = Callable[[Path], bool]
"""Whether the run in a directory is where it shall be killed."""


class Kill(NamedTuple):
    """A moment in words and as a test, and what to wait from there on, in seconds."""

    name: str
    moment: Moment
    delay: float


class Result(NamedTuple):
    """What happened, what stood there when it did, and what of the resumed run is not as in the unbroken one."""

    name: str
    stood: str
    differences: list[str]


def write_corpus(folder: Path) -> None:
    """Some thousand sentences of a small language and their translation, words in reverse order."""
    words = [f"{a}{b}" for a in ("ka", "lo", "mi", "ru", "ta", "ne", "so") for b in ("ba", "du", "fi", "go", "pe")]
    source = random.Random(0)
    for part, count in (("train", 4000), ("dev", 40), ("test", 40)):
        lines = [source.choices(words, k=source.randint(3, 12)) for _ in range(count)]
        (folder / f"{part}.a").write_text("".join(" ".join(line) + "\n" for line in lines), encoding="utf-8")
        (folder / f"{part}.b").write_text(
            "".join(" ".join(reversed(line)).upper() + "\n" for line in lines), encoding="utf-8"
        )


def command(corpus: Path, directory: Path) -> list[str]:
    """Accumulation, all kinds of dropout, and checkpoints between validations and in the middle of epochs."""
    files = [
        word
        for part, prefix in (("train", ""), ("dev", "dev-"), ("test", "test-"))
        for word in (f"--{prefix}source", f"{corpus / part}.a", f"--{prefix}target", f"{corpus / part}.b")
    ]
    settings = (
        "--model.d-model 32 --model.d-ff 64 --model.heads 2 --model.encoder-layers 2 --model.decoder-layers 2 "
        "--model.dropout 0.1 --model.attention-dropout 0.1 --model.activation-dropout 0.1 --model.layer-dropout 0.2 "
        "--tokenizer.size 400 --batches.tokens 1500 --training.accumulate 2 --training.threads 1 "
        f"--training.steps {STEPS} --training.clip-norm 1 --training.schedule.warmup-steps 20 "
        f"--validation.every {2 * EVERY} --checkpoints.every {EVERY} --checkpoints.keep-last 3"
    )
    return [sys.executable, "-m", "regard", "train", *files, *settings.split(), "--out", str(directory)]


def environment() -> dict[str, str]:
    return os.environ | {"OMP_NUM_THREADS": "1"}


def finish(corpus: Path, directory: Path) -> None:
    """Train to the end, or go on to it."""
    done = subprocess.run(command(corpus, directory), capture_output=True, env=environment(), check=False)
    if done.returncode:
        raise RuntimeError(f"the run did not end well:\n{done.stderr.decode()}")


# What a run leaves


def left(directory: Path) -> dict[str, str]:
    """The contents of a run by name, comparable: hashes of files, with times taken out, and every curve."""
    found = {}
    for path in sorted(directory.rglob("*")):
        name = str(path.relative_to(directory))
        if path.is_file() and path.parent.name != "tensorboard" and path.name != "SHA256SUMS":
            found[name] = hashlib.sha256(_timeless(path)).hexdigest()
        elif path.name.startswith("."):
            found[name] = "a leftover"
    curves = EventAccumulator(str(directory / "tensorboard")).Reload()
    for tag in curves.Tags()["scalars"]:
        if tag.rpartition("/")[2] not in TIMES:
            found[f"tensorboard {tag}"] = str([(each.step, each.value) for each in curves.Scalars(tag)])
    steps = [(each["kind"], each["step"]) for each in _records(directory / "metrics.jsonl")]
    found["steps of metrics.jsonl"] = "once" if len(set(steps)) == len(steps) else "twice"
    return found


def _timeless(path: Path) -> bytes:
    if path.name == "metrics.jsonl":
        return json.dumps([_without_times(each) for each in _records(path)]).encode()
    if path.name == "state.json":
        return json.dumps(_without_times(json.loads(path.read_bytes()))).encode()
    if path.name == "README.md":  # of the model: how long it was trained
        return re.sub(rb"[0-9:]+ of\ntraining|[0-9:]+ of training", b"", path.read_bytes())
    return path.read_bytes()


def _records(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def _without_times(value: object) -> object:
    if isinstance(value, dict):
        return {key: _without_times(each) for key, each in value.items() if key not in TIMES}
    return [_without_times(each) for each in value] if isinstance(value, list) else value


def differences(expected: dict[str, str], found: dict[str, str]) -> list[str]:
    return [name for name in sorted(expected.keys() | found.keys()) if expected.get(name) != found.get(name)]


# Kills


def kills(count: int, seed: int) -> Iterator[Kill]:
    """Moments of all kinds in turn."""
    chance = random.Random(seed)
    kinds = ("saving", "training", "preparing", "saving", "exporting", "training")
    for number in range(count):
        kind = kinds[number % len(kinds)]
        if kind == "saving":
            step = EVERY * chance.randint(1, STEPS // EVERY)
            yield Kill(f"saving step {step}", _exists(f"checkpoints/.step-{step}.partial"), chance.uniform(0, 0.004))
        elif kind == "training":
            step = EVERY * chance.randint(1, STEPS // EVERY - 1)
            yield Kill(f"training after step {step}", _exists(f"checkpoints/step-{step}"), chance.uniform(0, 0.6))
        elif kind == "preparing":
            file = chance.choice(("settings.yaml", "tokenizer.json", "data/.*.tmp", ".*.tmp", "data/train.arrow"))
            yield Kill(f"preparing, {file} seen", _exists(file), chance.uniform(0, 0.05))
        else:
            file = chance.choice((f"checkpoints/step-{STEPS}", ".model.partial", ".model.partial/*", "test.txt"))
            yield Kill(f"exporting, {file} seen", _exists(file), chance.uniform(0, 0.01))


def _exists(pattern: str) -> Moment:
    return lambda directory: next(directory.glob(pattern), None) is not None


def killed(corpus: Path, directory: Path, kill: Kill) -> Result:
    """Kill a run at its moment, look at what stands there, and resume it to the end."""
    process = subprocess.Popen(
        command(corpus, directory), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()
    )
    await_moment(process, directory, kill)
    process.send_signal(signal.SIGKILL)
    status = process.wait()
    stood = standing(directory) + ("" if status == -signal.SIGKILL else f"; ended by itself before ({status})")
    finish(corpus, directory)
    return Result(kill.name, stood, [])


def await_moment(process: subprocess.Popen[bytes], directory: Path, kill: Kill) -> None:
    deadline = time.monotonic() + PATIENCE
    while not kill.moment(directory) and process.poll() is None:
        if time.monotonic() > deadline:
            process.kill()
            raise RuntimeError(f"{kill.name}: the moment did not come")
        time.sleep(0.0002)
    time.sleep(kill.delay)


def standing(directory: Path) -> str:
    """What a kill left: the newest checkpoint and all that is half done."""
    names = [path.name for path in directory.glob("checkpoints/step-*")]
    newest = max(names, key=lambda name: int(name.removeprefix("step-")), default="no checkpoint")
    hidden = sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.name.startswith("."))
    return ", ".join([newest, *hidden, *(["model"] if (directory / "model").exists() else [])])


# Full disks


def disks(count: int, seed: int) -> Iterator[Kill]:
    """Moments from which on there is no room, in all stages of a run."""
    chance = random.Random(seed)
    early, late = (EVERY * chance.randint(first, first + 2) for first in (1, 4))
    patterns = (
        ".model.partial", f"checkpoints/step-{early}", "tokenizer.json", f"checkpoints/.step-{late}.partial",
        "test.txt", "settings.yaml", "data/train.arrow", "model",
    )  # fmt: skip
    for number in range(count):
        pattern = patterns[number % len(patterns)]
        yield Kill(f"disk full when {pattern} is seen", _exists(pattern), 0.0)


def filled(corpus: Path, folder: Path, kill: Kill) -> tuple[Result, dict[str, str]]:
    """A run whose disk is full from a moment on must say so in a sentence; then room is made, and it is resumed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        return limited(corpus, folder / "run", random.Random(kill.name).randint(1_000, 400_000))
    try:
        directory, filler = folder / "run", folder / "filler"
        process = subprocess.Popen(command(corpus, directory), stderr=subprocess.PIPE, env=environment())
        await_moment(process, directory, kill)
        process.send_signal(signal.SIGSTOP)
        with suppress(OSError), filler.open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))
        process.send_signal(signal.SIGCONT)
        stood = _sentence(process.communicate()[1], process.returncode, directory)
        filler.unlink()
        finish(corpus, directory)
        return Result(kill.name, stood, []), left(directory)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def limited(corpus: Path, directory: Path, size: int) -> tuple[Result, dict[str, str]]:
    """Where nothing may be mounted: a run whose files may not be larger than so many bytes."""

    def before() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))

    done = subprocess.run(
        command(corpus, directory), stderr=subprocess.PIPE, env=environment(), preexec_fn=before, check=False
    )
    stood = _sentence(done.stderr, done.returncode, directory)
    finish(corpus, directory)
    return Result(f"no file above {size:,} bytes", stood, []), left(directory)


def _sentence(stderr: bytes, status: int, directory: Path) -> str:
    """What stands there and what was said of it; anything but a failed job with a sentence is an error."""
    said = stderr.decode().strip()
    if status == 0:
        return f"{standing(directory)}: the rest had room"
    if status != 1 or "Traceback" in said:
        raise RuntimeError(f"a full disk ended the run with status {status}:\n{said}")
    last = said.splitlines()[-1].removeprefix("regard: ").replace(str(directory), "RUN")
    return f"{standing(directory)}: {last}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--full-disks", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    logging.getLogger("tensorboard").setLevel(logging.ERROR)  # its reader tells of each restart
    console = Console(width=200)
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="regard-kills-") as name:
        folder = Path(name)
        write_corpus(folder)
        finish(folder, folder / "unbroken")
        expected = left(folder / "unbroken")

        def note(result: Result, found: dict[str, str]) -> None:
            results.append(result._replace(differences=differences(expected, found)))
            console.print(f"{len(results)}. {result.name}: {results[-1].differences or 'as the unbroken run'}")

        for number, kill in enumerate(kills(options.kills, options.seed)):
            directory = folder / f"killed-{number}"
            note(killed(folder, directory, kill), left(directory))
        for number, kill in enumerate(disks(options.full_disks, options.seed)):
            note(*filled(folder, folder / f"disk-{number}", kill))
    report(console, results)


def report(console: Console, results: list[Result]) -> None:
    table = Table("", "moment", "what stood there", "resumed to its end")
    for number, result in enumerate(results, start=1):
        table.add_row(str(number), result.name, result.stood, ", ".join(result.differences) or "identical")
    console.print(table)
    good = sum(not result.differences for result in results)
    console.print(f"{good} of {len(results)} ended as the unbroken run, byte for byte but for times")
    sys.exit(good < len(results))


if __name__ == "__main__":
    main()
