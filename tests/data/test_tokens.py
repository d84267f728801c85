"""Corpora of one text: what a document is, and the file of their ids."""

from __future__ import annotations

import gzip
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from regard.data import encoding
from regard.data.binarise import binarise, binarise_texts
from regard.data.tokens import Documents, TokenDataset, read_documents
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings

TEXT = "a dog\n\n \ntwo cats\u2028sleep\r\nin the sun\n\n\nand\x0bone"
DOCUMENTS: list[tuple[Documents, list[str]]] = [
    ("lines", ["a dog", "", " ", "two cats\u2028sleep", "in the sun", "", "", "and\x0bone"]),
    ("paragraphs", ["a dog", "two cats\u2028sleep\nin the sun", "and\x0bone"]),
    ("file", ["a dog\n\n \ntwo cats\u2028sleep\nin the sun\n\n\nand\x0bone\n"]),
]


@pytest.mark.parametrize("pack", [lambda text: text, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize(("documents", "expected"), DOCUMENTS)
def test_what_a_document_is(tmp_path: Path, documents: Documents, expected: list[str], pack) -> None:
    path = tmp_path / "text"
    path.write_bytes(pack(TEXT.encode()))
    assert list(read_documents([path], documents)) == expected
    assert list(read_documents([path, path], documents)) == expected * 2


def test_an_empty_file_has_no_document_to_train_on(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    (tmp_path / "text").write_bytes(b"")
    for documents in ("lines", "paragraphs", "file"):
        texts = read_documents([tmp_path / "text"], documents)
        with pytest.raises(UserError, match="there is no document to train on"):
            binarise_texts(texts, tokenizers.source, tmp_path / "out.arrow", documents=documents)


def test_a_bad_byte_is_named_by_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"good\n\xff\n")
    for documents in ("lines", "paragraphs", "file"):
        with pytest.raises(UserError, match="text, line 2: byte 0xFF is not UTF-8"):
            list(read_documents([tmp_path / "text"], documents))


@pytest.mark.parametrize(("documents", "expected"), DOCUMENTS)
def test_the_text_comes_back(
    tmp_path: Path, tokenizers: TokenizerPair, documents: Documents, expected: list[str]
) -> None:
    tokenizer = tokenizers.source
    path = tmp_path / "text.arrow"
    report = binarise_texts(expected, tokenizer, path, documents=documents)
    dataset = TokenDataset.open(path, tokenizer)
    kept = [text for text in expected if text.strip()]
    assert tokenizer.decode([dataset.document(i).tolist() for i in range(len(dataset))]) == kept
    assert dataset.lengths.tolist() == [len(ids) for ids in tokenizer.encode(kept)]
    assert dataset.documents == documents
    assert (report.read, report.kept, report.tokens) == (len(expected), len(kept), dataset.lengths.sum())
    if documents == "lines":
        assert str(report).endswith("skipped 4: empty document (first in document 2)")
    table = pa.ipc.open_file(path).read_all()
    assert table.column("tokens").to_pylist() == tokenizer.encode(kept)
    assert table.schema.metadata[b"tokenizer"].decode() == tokenizer.fingerprint


def test_the_number_of_processes_does_not_change_the_file(
    tmp_path: Path, tokenizers: TokenizerPair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoding, "CHUNK_ROWS", 3)
    for processes in (1, 2):
        texts = [f"dog {i}" if i % 7 else "" for i in range(20)]
        path = tmp_path / f"{processes}.arrow"
        binarise_texts(texts, tokenizers.source, path, documents="lines", processes=processes)
    assert (tmp_path / "1.arrow").read_bytes() == (tmp_path / "2.arrow").read_bytes()


def test_files_of_another_kind_or_tokenizer_are_refused(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    pairs, texts = tmp_path / "pairs.arrow", tmp_path / "texts.arrow"
    binarise([("a", "b")], tokenizers, pairs)
    binarise_texts(["a"], tokenizers.source, texts, documents="lines")
    with pytest.raises(UserError, match="an Arrow file, but not of binarised texts"):
        TokenDataset.open(pairs, tokenizers.source)
    other = Tokenizer.learn(["something else entirely"] * 2, TokenizerSettings(size=270))
    with pytest.raises(UserError, match="was made with another tokenizer; binarise again"):
        TokenDataset.open(texts, other)
    content = texts.read_bytes()
    for size in range(0, len(content), 29):
        texts.write_bytes(content[:size])
        with pytest.raises(UserError, match="not a complete Arrow file of texts"):
            TokenDataset.open(texts, tokenizers.source)


def test_a_pickled_data_set_maps_the_file_again(tmp_path: Path, tokenizers: TokenizerPair) -> None:
    path = tmp_path / "texts.arrow"
    binarise_texts(["a dog runs"] * 5000, tokenizers.source, path, documents="lines")
    dataset = TokenDataset.open(path, tokenizers.source)
    copy = pickle.loads(pickle.dumps(dataset))
    assert len(pickle.dumps(dataset)) < 50_000
    assert copy.document(4999).tolist() == dataset.document(0).tolist()
    assert (len(copy), copy.documents) == (5000, "lines")
    with pytest.raises(ValueError, match="read-only"):
        dataset.document(0)[0] = 5
    with pytest.raises(IndexError):
        dataset.document(5000)
