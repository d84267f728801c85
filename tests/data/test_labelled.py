"""Texts and words with labels: read, binarised, batched; and images."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import torch

from regard.data.budget import BatchSettings
from regard.data.examples import ImageBatches, ImageDataset, LabelledBatch, LabelledBatches
from regard.data.labelled import (
    Example,
    LabelledDataset,
    Tagged,
    binarise_labelled,
    binarise_tagged,
    encode_words,
    label_set,
    read_labelled,
    read_tagged,
)
from regard.errors import UserError
from regard.text.tokenizer import Tokenizer, TokenizerPair

EXAMPLES = [Example(text, label, f"train.tsv, line {n}") for n, (text, label) in enumerate(
    [("a dog runs", "dog"), ("two cats", "cat"), ("ein Hund", "dog"), ("42", "number")], start=1
)]  # fmt: skip
LABELS = ("cat", "dog", "number")


@pytest.fixture
def tokenizer(tokenizers: TokenizerPair) -> Tokenizer:
    return tokenizers.source


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8", newline="\n")
    return path


def test_one_file_or_two_parallel_ones(tmp_path: Path) -> None:
    table = write(tmp_path / "a.tsv", "a dog\tdog\ntwo\u2028cats\t cat\n")
    texts, labels = write(tmp_path / "a.txt", "a dog\ntwo\u2028cats\n"), write(tmp_path / "a.labels", "dog\n cat\n")
    expected = [("a dog", "dog"), ("two\u2028cats", "cat")]
    assert list(read_labelled(table)) == [(*pair, f"{table}, line {n}") for n, pair in enumerate(expected, start=1)]
    assert list(read_labelled(texts, labels)) == [
        (*pair, f"{labels}, line {n}") for n, pair in enumerate(expected, start=1)
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a\tb\nc\n", r"a\.tsv, line 2: 1 columns where text, one TAB and label are expected"),
        ("a\tb\tc\n", r"a\.tsv, line 1: 3 columns"),
        ("a\tb\n\tc\n", r"a\.tsv, line 2: there is no text to label"),
        ("a\tb\nc\t \n", r"a\.tsv, line 2: there is no label"),
    ],
)
def test_a_mistake_in_labelled_text_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        list(read_labelled(write(tmp_path / "a.tsv", text)))


def test_sentences_of_words(tmp_path: Path) -> None:
    text = "-DOCSTART- -X- O O\n\nEU NNP B-ORG\nrejects\tVBZ O\n \t\n\nGerman\u00a0call JJ  B-MISC\n"
    path = write(tmp_path / "a.conll", text)
    one, other = read_tagged(path)
    assert one == (["EU", "rejects"], ["B-ORG", "O"], [f"{path}, line 3", f"{path}, line 4"])
    assert other == (["German\u00a0call"], ["B-MISC"], [f"{path}, line 7"])
    with pytest.raises(UserError, match=r"b, line 2: the word 'dog' has no label"):
        list(read_tagged(write(tmp_path / "b", "a O\ndog\n")))


def test_the_labels_are_those_that_occur_sorted() -> None:
    assert label_set(EXAMPLES) == LABELS
    assert label_set([Tagged(["a", "b"], ["O", "B"], ["", ""])]) == ("B", "O")
    with pytest.raises(UserError, match="only the label 'dog'"):
        label_set([EXAMPLES[0], EXAMPLES[2]])
    with pytest.raises(UserError, match="no label"):
        label_set([])


def test_texts_come_back_with_their_labels(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.arrow"
    report = binarise_labelled(EXAMPLES, tokenizer, path, LABELS)
    dataset = LabelledDataset.open(path, tokenizer)
    ids, numbers = zip(*(dataset.example(i) for i in range(len(dataset))), strict=True)
    assert tokenizer.decode([row.tolist() for row in ids]) == [example.text for example in EXAMPLES]
    assert [row.tolist() for row in numbers] == [[1], [0], [1], [2]]
    assert (dataset.labels, dataset.scored) == (LABELS, "texts")
    assert (report.examples, report.tokens, report.scored, report.cut) == (4, dataset.lengths.sum(), 4, 0)
    table = pa.ipc.open_file(path).read_all()
    assert table.column("labels").to_pylist() == [[1], [0], [1], [2]]
    assert table.schema.metadata[b"labels"] == b'["cat", "dog", "number"]'


def test_words_come_back_with_their_labels_at_the_first_token(tmp_path: Path, tokenizer: Tokenizer) -> None:
    sentence = Tagged(["a", "dog", "42x"], ["dog", "cat", "number"], ["f, line 1", "f, line 2", "f, line 3"])
    path = tmp_path / "a.arrow"
    report = binarise_tagged([sentence], tokenizer, path, LABELS)
    dataset = LabelledDataset.open(path, tokenizer)
    ids, numbers = dataset.example(0)
    words = tokenizer.encode(sentence.words)
    assert encode_words(tokenizer, [sentence.words]) == [words]
    assert ids.tolist() == [number for word in words for number in word] == tokenizer.encode(["a dog 42x"])[0]
    assert numbers.tolist() == [1, *[-1] * (len(words[0]) - 1), 0, *[-1] * (len(words[1]) - 1), 2, -1, -1, -1]
    assert len(words[2]) == 4
    assert dataset.scored == "tokens"
    assert report.scored == 3


def test_an_unknown_label_is_named_by_file_and_line(tmp_path: Path, tokenizer: Tokenizer) -> None:
    with pytest.raises(UserError, match=r"^train\.tsv, line 4: the label 'number' is not one of the 2 .*\(cat, dog\)$"):
        binarise_labelled(EXAMPLES, tokenizer, tmp_path / "a.arrow", ("cat", "dog"))
    sentence = Tagged(["a", "b"], ["cat", "bird"], ["f, line 1", "f, line 2"])
    with pytest.raises(UserError, match=r"^f, line 2: the label 'bird' is not one of the 3"):
        binarise_tagged([sentence], tokenizer, tmp_path / "a.arrow", LABELS)
    with pytest.raises(UserError, match="there is no example to learn from"):
        binarise_labelled([], tokenizer, tmp_path / "a.arrow", LABELS)
    assert list(tmp_path.iterdir()) == []


def test_what_is_too_long_is_cut_and_counted(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.arrow"
    long = Example("1" * 20, "cat", "")
    assert binarise_labelled([long, EXAMPLES[0]], tokenizer, path, LABELS, max_length=10).cut == 1
    ids, _ = LabelledDataset.open(path, tokenizer).example(0)
    assert ids.tolist() == tokenizer.encode(["1" * 20])[0][:10]


def test_a_long_sentence_goes_on_in_a_further_row_and_no_label_is_lost(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.arrow"
    words = ["111", "22", "3333333333", "4", "5"]  # of 4, 3, 11, 2 and 2 tokens
    sentence = Tagged(words, ["cat", "dog", "number", "dog", "cat"], [""] * 5)
    assert binarise_tagged([sentence], tokenizer, path, LABELS, max_length=7).cut == 1
    dataset = LabelledDataset.open(path, tokenizer)
    assert dataset.lengths.tolist() == [7, 7, 4]
    assert [dataset.example(i)[1].tolist() for i in range(3)] == [
        [0, -1, -1, -1, 1, -1, -1], [2, *[-1] * 6], [1, -1, 0, -1]
    ]  # fmt: skip


def test_damaged_files_are_refused(tmp_path: Path, tokenizer: Tokenizer) -> None:
    path = tmp_path / "a.arrow"
    binarise_labelled(EXAMPLES, tokenizer, path, LABELS)
    content = path.read_bytes()
    for size in range(0, len(content), 31):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match="not a complete Arrow file of labelled texts"):
            LabelledDataset.open(path, tokenizer)
    binarise_labelled(EXAMPLES, tokenizer, path, LABELS)
    path.write_bytes(path.read_bytes().replace(b'["cat", "dog", "number"]', b'["cat", "dog-number"]   '))
    with pytest.raises(UserError, match="it has labels without a name"):
        LabelledDataset.open(path, tokenizer)


MakeData = Callable[[int], LabelledDataset]


@pytest.fixture
def make_data(tmp_path: Path, tokenizer: Tokenizer) -> MakeData:
    def make(count: int) -> LabelledDataset:
        examples = [Example("7" * (i * 5 % 13) or "d", LABELS[i % 3], "") for i in range(count)]
        binarise_labelled(examples, tokenizer, tmp_path / "a.arrow", LABELS)
        return LabelledDataset.open(tmp_path / "a.arrow", tokenizer)

    return make


def indices(batches: list[LabelledBatch]) -> list[tuple[int, ...]]:
    return [batch.indices for batch in batches]


def test_a_batch_of_texts(tmp_path: Path, tokenizer: Tokenizer) -> None:
    binarise_labelled(EXAMPLES, tokenizer, tmp_path / "a.arrow", LABELS)
    dataset = LabelledDataset.open(tmp_path / "a.arrow", tokenizer)
    (batch,) = LabelledBatches(dataset, BatchSettings()).in_order()
    lengths = [int(dataset.lengths[i]) + 2 for i in batch.indices]
    assert sorted(batch.indices) == [0, 1, 2, 3]
    assert lengths == sorted(lengths)
    for row, index in enumerate(batch.indices):
        ids, (number,) = dataset.example(index)
        padding = lengths[-1] - lengths[row]
        assert batch.inputs[row].tolist() == [1, *ids.tolist(), 2, *[0] * padding]
        assert batch.labels[row] == number
        assert batch.real_BS is not None
        assert batch.real_BS[row].tolist() == [True] * lengths[row] + [False] * padding
    assert (batch.source_tokens, batch.target_tokens) == (sum(lengths), 4)


def test_a_batch_of_words(tmp_path: Path, tokenizer: Tokenizer) -> None:
    sentences = [Tagged(["1", "23"], ["cat", "dog"], ["", ""]), Tagged(["4"], ["number"], [""])]
    binarise_tagged(sentences, tokenizer, tmp_path / "a.arrow", LABELS)
    (batch,) = LabelledBatches(LabelledDataset.open(tmp_path / "a.arrow", tokenizer), BatchSettings()).in_order()
    assert batch.indices == (1, 0)
    assert batch.labels.tolist() == [[-1, 2, -1, -1, -1, -1, -1], [-1, 0, -1, 1, -1, -1, -1]]
    assert batch.inputs.shape == (2, 7)
    assert batch.target_tokens == 3


@pytest.mark.parametrize("ranks", [1, 2])
def test_each_text_once_an_epoch_in_an_order_that_continues(make_data: MakeData, ranks: int) -> None:
    dataset = make_data(60)
    chosen = BatchSettings(tokens=50)
    made = list(LabelledBatches(dataset, chosen, seed=2).epoch(1))
    together = indices(made)
    assert sorted(index for batch in together for index in batch) == list(range(60))
    assert all(batch.inputs.numel() <= 50 for batch in made)
    share = sum(batch.source_tokens for batch in made) / sum(batch.inputs.numel() for batch in made)
    assert LabelledBatches(dataset, chosen, seed=2).real_share(1) == pytest.approx((share,) * 3)
    assert together != indices(list(LabelledBatches(dataset, chosen, seed=2).epoch(2)))
    for rank in range(ranks):
        own = pickle.loads(pickle.dumps(LabelledBatches(dataset, chosen, seed=2, rank=rank, ranks=ranks)))
        assert indices(list(own.epoch(1, 5))) == [
            batch for k, batch in enumerate(together) if k >= 5 and k % ranks == rank
        ]
    with pytest.raises(UserError, match="the longest text has 15 tokens, more than the budget of 14"):
        LabelledBatches(dataset, BatchSettings(tokens=14))


def test_images(tmp_path: Path) -> None:
    images = np.arange(7 * 4, dtype=np.float32).reshape(7, 1, 2, 2)
    dataset = ImageDataset(images, np.array([0, 1, 0, 1, 1, 0, 0]), ("off", "on"))
    batches = ImageBatches(dataset, size=3, seed=1)
    made = list(batches.epoch(0))
    assert [len(batch.indices) for batch in made] in ([3, 3, 1], [3, 1, 3], [1, 3, 3])
    assert sorted(index for batch in made for index in batch.indices) == list(range(7))
    for batch in made:
        assert torch.equal(batch.inputs, torch.from_numpy(images[list(batch.indices)]))
        assert batch.labels.tolist() == [int(dataset.numbers_N[i]) for i in batch.indices]
        assert batch.real_BS is None
        assert batch.target_tokens == batch.to("meta").target_tokens == len(batch.indices)
    assert indices(list(batches.in_order())) == [(0, 1, 2), (3, 4, 5), (6,)]
    assert indices(list(batches.epoch(1))) != indices(made)
    for numbers in ([0] * 6, [0] * 6 + [2], [0] * 6 + [-1]):
        with pytest.raises(ValueError, match="labels"):
            ImageDataset(images, np.array(numbers), ("off", "on"))
