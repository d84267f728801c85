"""What the tokenizer files of a Hugging Face model directory say, of whatever age they are."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from regard.errors import UserError
from regard.settings import read_json
from regard.text.vocabulary import Document

TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
ROLES = ("pad", "bos", "eos", "unk", "mask", "cls", "sep")

_BERT = {"pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]", "cls": "[CLS]", "sep": "[SEP]"}
_FAIRSEQ = {"pad": "<pad>", "bos": "<s>", "eos": "</s>", "unk": "<unk>", "mask": "<mask>"}
_NAMES = {
    "bert": _BERT,
    "roberta": _FAIRSEQ,
    "bart": _FAIRSEQ,
    "m2m_100": {role: name for role, name in _FAIRSEQ.items() if role != "mask"},
    "marian": {"pad": "<pad>", "eos": "</s>", "unk": "<unk>"},
}
"""The special tokens of models whose files may leave them to the class in `transformers` that reads them."""


@dataclass(frozen=True)
class Files:
    """The JSON files of a directory."""

    directory: Path
    config: dict[str, Any]
    """`config.json`, what `generation_config.json` says differently laid on top."""
    tokenizer: dict[str, Any]
    """`special_tokens_map.json`, what `tokenizer_config.json` says differently laid on top."""

    @classmethod
    def read(cls, directory: Path) -> Files:
        """Read what there is; `config.json` must be there.

        Raises:
            UserError: a file is missing or no JSON object.
        """
        config, tokenizer = directory / "config.json", directory / "special_tokens_map.json"
        return cls(
            directory,
            read_json(config) | read_json(directory / "generation_config.json", missing={}),
            read_json(tokenizer, missing={}) | read_json(directory / TOKENIZER_CONFIG, missing={}),
        )

    @property
    def kind(self) -> str:
        """The architecture, as `transformers` calls it."""
        return str(self.config.get("model_type", ""))

    def number(self, key: str) -> int | None:
        """An id of the configuration; of several the first."""
        value = self.config.get(key)
        value = value[0] if isinstance(value, list) and value else value
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def names(self) -> dict[str, str]:
        """The special token of each role."""
        named = {role: content(self.tokenizer.get(f"{role}_token")) for role in ROLES}
        return _NAMES.get(self.kind, {}) | {role: name for role, name in named.items() if name is not None}

    def further(self) -> list[str]:
        """The special tokens without a role, such as languages."""
        lists = [self.tokenizer.get(key) for key in ("additional_special_tokens", "extra_special_tokens")]
        tokens = [content(token) for several in lists if isinstance(several, list) for token in several]
        return [token for token in dict.fromkeys(tokens) if token is not None]


class Hub:
    """A tokenizer of the library `tokenizers` together with what the files beside it say."""

    def __init__(self, files: Files, document: Document) -> None:
        self.files, self.document = files, document
        self.names = files.names()

    @cached_property
    def backend(self) -> Backend:
        """The tokenizer, without what would fill up or cut off a text."""
        return Backend.from_str(json.dumps(self.document | {"truncation": None, "padding": None}))

    @property
    def size(self) -> int:
        """The ids of the model."""
        return int(self.files.config.get("vocab_size") or self.backend.get_vocab_size())

    def role(self, role: str) -> int | None:
        """The id of a role: by its token, or by the configuration. None beyond the ids of the model."""
        name = self.names.get(role)
        found = None if name is None else self.id_of(name)
        found = self.files.number(f"{role}_token_id") if found is None else found
        return found if found is not None and 0 <= found < self.size else None

    def id_of(self, token: str) -> int | None:
        """The id of a token of the vocabulary."""
        number: int | None = self.backend.token_to_id(token)
        return number

    def needed(self, token: str) -> int:
        """The id of a token without which the model cannot be used."""
        number = self.id_of(token)
        if number is None:
            raise UserError(f"{self.files.directory}: the vocabulary has no {token}; convert without the tokenizer")
        return number

    def special(self) -> Iterator[int]:
        """The ids of all special tokens."""
        yield from (token["id"] for token in self.document.get("added_tokens") or () if token.get("special"))
        named = (*map(self.role, self.names), *map(self.id_of, self.files.further()))
        yield from (number for number in named if number is not None)

    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What the tokenizer puts before and after a text by itself."""
        encoding = self.backend.encode("a")
        special = encoding.special_tokens_mask
        if 0 not in special:
            raise UserError(f"{self.files.directory}: the tokenizer finds nothing in a text; fetch the directory again")
        before, after = special.index(0), special[::-1].index(0)
        return tuple(encoding.ids[:before]), tuple(encoding.ids[len(special) - after :])


def document(files: Files) -> Document:
    """The library's document: as it stands there, or made from the files that came before it.

    Raises:
        UserError: there are no such files, or they are damaged.
    """
    directory = files.directory
    if (directory / TOKENIZER).exists():
        return read_json(directory / TOKENIZER)
    if (directory / "vocab.json").exists() and (directory / "merges.txt").exists():
        backend = _byte_level(files)
    elif (directory / "vocab.txt").exists():
        backend = _wordpiece(files)
    else:
        raise UserError(
            f"{directory}: has no {TOKENIZER}; write one with transformers "
            "(AutoTokenizer.from_pretrained(...).save_pretrained(...)), or convert without the tokenizer"
        )
    present = [name for name in files.names().values() if backend.token_to_id(name) is not None]
    backend.add_special_tokens([AddedToken(name, normalized=False) for name in present])
    made: Document = json.loads(backend.to_str())
    return made


def _byte_level(files: Files) -> Backend:
    """GPT-2, RoBERTa, BART: byte pair encoding over bytes."""
    names = [str(files.directory / name) for name in ("vocab.json", "merges.txt")]
    backend = _library(files.directory, lambda: models.BPE.from_file(*names))
    spaced = files.tokenizer.get("add_prefix_space", False) is True
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=spaced)
    backend.decoder = decoders.ByteLevel()
    return backend


def _wordpiece(files: Files) -> Backend:
    """BERT: longest pieces first, in words without accents and, unless said otherwise, in lower case."""
    unknown, path = files.names().get("unk", "[UNK]"), files.directory / "vocab.txt"
    backend = _library(files.directory, lambda: models.WordPiece.from_file(str(path), unk_token=unknown))
    backend.normalizer = normalizers.BertNormalizer(
        lowercase=files.tokenizer.get("do_lower_case", True) is not False,
        strip_accents=files.tokenizer.get("strip_accents"),
        handle_chinese_chars=files.tokenizer.get("tokenize_chinese_chars", True) is not False,
    )
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    return backend


def _library(directory: Path, make: Any) -> Backend:
    try:
        return Backend(make())
    except Exception as error:  # the library has no narrower class
        raise UserError(f"{directory}: the vocabulary is damaged: {error}; fetch it again") from None


def content(token: Any) -> str | None:
    """The text of a token, which files give plainly or among its properties."""
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else None
