"""The command `regard`: one short module per verb, imported when the verb is used."""

from __future__ import annotations

import io
import logging
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module

from cyclopts import App, CycloptsError

from regard.errors import JobError, UserError
from regard.version import __version__

HELP = """Train a Transformer on your own text, translate with it, measure it, look inside it.

Begin with: `regard train --source text.en --target text.de --out runs/mine`
"""

VERBS = {
    "train": "Train a model on text files or by a recipe.",
    "translate": "Translate text, files or standard input with a model.",
    "bulk": "Translate a large file on many machines, or all cores of one, with Ray.",
    "generate": "Continue texts with a language model.",
    "fill": "Guess the tokens behind the masks of a text.",
    "classify": "Label texts, or the words of texts.",
    "evaluate": "Score translations with BLEU and chrF.",
    "score": "Give the log-probability of translations under a model.",
    "inspect": "Show what a model or preset consists of.",
    "convert": "Turn models of Hugging Face transformers into ours, or ours into theirs or CTranslate2's.",
    "experiment": "Carry out a comparison of the paper on your own text.",
    "data": "Prepare text: fetch, clean, measure, learn a tokenizer, binarise, back-translate, distill.",
}


def application(verb: str | None) -> App:
    """The command line. Only the module of `verb` is imported; the others are names with a summary."""
    app = App(name="regard", version=__version__, help=HELP, suppress_keyboard_interrupt=False)
    for name, summary in VERBS.items():
        if name == verb:
            module = import_module(f"regard.cli.{name}")
            command: App | None = getattr(module, "app", None)
            if command is None:
                command = App(usage=getattr(module, "USAGE", None))
                command.default(getattr(module, name))
            app.command(command, name=name)
        else:
            app.command(App(help=summary), name=name)
    return app


class _Notice(logging.Formatter):
    """`warning: ...`, and plain text for what is only news."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"{record.levelname.lower()}: " if record.levelno > logging.INFO else ""
        return prefix + record.getMessage()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line: exit status 0, 2 for wrong use, 1 for a failed job, 130 after Ctrl-C."""
    # Both must be set before torch is imported (docs/decisions/003). Idle threads of GNU OpenMP otherwise burn the time
    # that other programs on the machine could use to let the busy ones finish; large tensors come in large pages.
    os.environ.setdefault("GOMP_SPINCOUNT", "3000")
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    _open_what_is_closed()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # asked to end: as by Ctrl-C, with things put in order
    handler = logging.StreamHandler()
    handler.setFormatter(_Notice())
    log = logging.getLogger("regard")
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    sys.exit(_status(sys.argv[1:] if arguments is None else arguments))


def _open_what_is_closed() -> None:
    """Without standard input, output or messages (`<&-`), Python has None in their places, and nobody expects that."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))


def _status(arguments: Sequence[str]) -> int:
    try:
        application(next(iter(arguments), None))(
            arguments, exit_on_error=False, print_error=False, result_action="return_value"
        )
        sys.stdout.flush()
    except BrokenPipeError:
        _forget_output()  # whoever read it has had enough
    except SystemExit as stop:
        if not isinstance(stop.__context__, BrokenPipeError):  # which is what rich makes of it
            raise
    except (Exception, KeyboardInterrupt) as error:
        status, message = _verdict(error)
        print(f"regard: {message}", file=sys.stderr)
        return status
    return 0


def _verdict(error: BaseException) -> tuple[int, str]:
    """The exit status and the sentence for what ended a command; what is our own mistake is raised again."""
    if isinstance(error, CycloptsError):
        return 2, _sentence(error)
    if isinstance(error, UserError):
        return 2, str(error)
    if isinstance(error, JobError):
        return 1, str(error)
    if isinstance(error, KeyboardInterrupt):
        return 130, "interrupted"
    if isinstance(error, OSError):
        _forget_output()
        return 1, f"{error.filename or 'standard output'}: {error.strerror or error}"
    if _lacks_memory(error):
        return 1, "out of memory; a smaller model or smaller batches need less"
    raise error


def _forget_output() -> None:
    """What of the output cannot be written is let go, for Python would complain when it closes the stream."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _lacks_memory(error: BaseException) -> bool:
    """Whether it is Python's MemoryError or one of torch's, whose class for a CPU says nothing."""
    names = {kind.__name__ for kind in type(error).__mro__}
    return bool(names & {"MemoryError", "OutOfMemoryError"}) or "allocate memory" in str(error)


def _sentence(error: CycloptsError) -> str:
    """What is wrong with the options, in one line; impossible settings in the words of `regard.settings`."""
    from pydantic import ValidationError

    from regard.settings import complaint

    cause = error.__cause__
    while cause is not None and not isinstance(cause, ValidationError):
        cause = cause.__cause__
    if cause is not None:
        options = [
            f"--{'.'.join(map(str, each['loc'])).replace('_', '-')}: {complaint(each)}" for each in cause.errors()
        ]
        return "; ".join(options)
    return f"{' '.join(str(error).split())} (see regard --help)"
