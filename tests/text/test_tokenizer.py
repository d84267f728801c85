"""Text to ids and back without loss, for all three kinds of tokenizer."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from regard.errors import UserError
from regard.text.tokenizer import Tokenizer, TokenizerPair, TokenizerSettings
from regard.text.vocabulary import CONTROL

KINDS = ("bpe", "wordpiece", "unigram")
CORPUS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps.",
    "Der schnelle braune Fuchs springt über den faulen Hund, und der Hund schläft.",
    "the 1,234 dogs and the 56 foxes don't sleep in the house <s> </s> <pad> <unk> [MASK]",
    "हिन्दी में लिखा हुआ वाक्य और हिन्दी में दूसरा वाक्य",
    "你好，世界。你好，朋友。",
] * 3

# Every string that some other toolkit is known to have lost a part of, and their kin.
AWKWARD = [
    "",
    " ",
    "   ",
    "\t",
    "\n",
    " leading",
    "trailing ",
    "  two  inner  spaces  ",
    "': 'search'",
    "a , b",
    "tab\tbetween",
    "https://a.b/c?d=1&e=%20",
    "1,234.50",
    "👨‍👩‍👧‍👦 👍🏽 🇩🇪 ❤️ 1️⃣",
    "ශ්‍රී ලංකාව",
    "می‌خواهم",
    "السلام عليكم",
    "שָׁלוֹם",
    "e\u0301te\u0301 n\u0303 \u0301start",
    "non\u00a0breaking\u202fspace\u3000wide",
    "\u2581under\u2581 \u2581",
    "龘 unseen 𠮷",
    "ภาษาไทย",
    "zero\u200bwidth\u200d\u200cjoin\ufeffers",
    "\ufffd replacement",
    "a\rb\vc\fd\x1ce\x1df\x1eg\x85h\u2028i\u2029j",
    "\0null\x7f\x80",
    "Ġ Ċ Ã© are letters that bytes are spelled with",
    "x" * 300 + " " * 200 + "!" * 150 + "9" * 20 + "e" + "\u0301" * 40,
    "don't l'eau п'ять ’tis dogs'",
]
LOOKS_LIKE_CONTROL = [*CONTROL, "[UNK]", "[MASK]", "[CLS]", "[PAD]", "<0xE2>", "<mask>", "<|endoftext|>", "##s", "▁"]

any_text = st.text(alphabet=st.characters(exclude_categories=["Cs"]))
control_like = st.lists(st.one_of(st.sampled_from(LOOKS_LIKE_CONTROL), any_text)).map("".join)


@cache
def tokenizer_of(kind: str, **changes: object) -> Tokenizer:
    settings = {"kind": kind, "size": 400, **changes}
    return Tokenizer.learn(CORPUS, TokenizerSettings.model_validate(settings))


each_kind = pytest.mark.parametrize("kind", KINDS)


@each_kind
@pytest.mark.parametrize("text", AWKWARD + LOOKS_LIKE_CONTROL)
def test_awkward_text_comes_back(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    assert tokenizer.decode(tokenizer.encode([text])) == [text]


@each_kind
@given(texts=st.lists(any_text, max_size=5))
def test_any_text_comes_back(kind: str, texts: list[str]) -> None:
    tokenizer = tokenizer_of(kind)
    assert tokenizer.decode(tokenizer.encode(texts)) == texts


@each_kind
@given(text=control_like)
def test_no_text_gives_a_control_id(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind)
    [ids] = tokenizer.encode([text])
    assert all(len(CONTROL) <= number < tokenizer.size for number in ids)
    assert tokenizer.decode([ids]) == [text]


@each_kind
@pytest.mark.parametrize("token", LOOKS_LIKE_CONTROL)
def test_frequent_text_that_looks_like_control_stays_text(kind: str, token: str) -> None:
    settings = TokenizerSettings(kind=kind, size=300)
    tokenizer = Tokenizer.learn([f"a {token} b{token}c {token}{token}"] * 50, settings)
    [ids] = tokenizer.encode([f"{token} x{token}"])
    assert min(ids) >= len(CONTROL)
    assert tokenizer.decode([ids]) == [f"{token} x{token}"]


@each_kind
@pytest.mark.parametrize(
    ("changes", "text", "expected"),
    [
        ({"lowercase": True}, "  The ÜBER\tCAFÉ Ω ", "  the über\tcafé ω "),
        ({"normalization": "nfc"}, " e\u0301  ﬁ Ⅷ ", " é  ﬁ Ⅷ "),
        ({"normalization": "nfkc"}, " e\u0301  ﬁ Ⅷ \u00a0", " é  fi VIII  "),
        ({"normalization": "nfkc", "lowercase": True}, "Ⅷ E\u0301", "viii é"),
        ({"normalization": "nfc"}, "\u0301x", "\u0301x"),
        ({"normalization": "nfkc"}, "", ""),
    ],
)
def test_only_the_stated_normalisation_changes_text(
    kind: str, changes: dict[str, object], text: str, expected: str
) -> None:
    tokenizer = tokenizer_of(kind, **changes)
    assert tokenizer.decode(tokenizer.encode([text])) == [expected]


@each_kind
@given(text=st.text(alphabet=st.characters(max_codepoint=0x2FFF, categories=["L", "M", "N", "P", "Zs"])))
def test_nfc_is_that_of_unicode(kind: str, text: str) -> None:
    tokenizer = tokenizer_of(kind, normalization="nfc")
    assert tokenizer.decode(tokenizer.encode([text])) == [unicodedata.normalize("NFC", text)]


@each_kind
def test_the_first_word_is_the_same_piece_as_a_later_one(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    [first, later] = tokenizer.encode(["the dog", "dog the dog"])
    assert later[-len(first) :] == first


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("don't l'eau п'ять", [" don't", " l'eau", " п'ять"]),
        ("हिन्दी में", [" हिन्दी", " में"]),
        ("ภาษาไทย", [" ภาษาไทย"]),
        ("e\u0301te\u0301", [" e\u0301te\u0301"]),
        ("می‌خواهم", [" می‌خواهم"]),
        ("👨‍👩‍👧 ❤️", [" 👨‍👩‍👧", " ❤️"]),
        ("1984-05", [" 1", "9", "8", "4", "-", "0", "5"]),
        ("so (dass)...", [" so", " (", "dass", ")..."]),
        ("a  \tb", [" a", "  ", "\t", "b"]),
    ],
)
def test_pieces_never_reach_across_words(text: str, words: list[str]) -> None:
    """Learned to saturation from one text, BPE has one piece for each word; so the words show."""
    tokenizer = Tokenizer.learn([text] * 9, TokenizerSettings(size=5000))
    [ids] = tokenizer.encode([text])
    assert tokenizer.pieces(ids) == [word.replace(" ", "▁") for word in words]


@each_kind
@given(text=any_text, cut=st.integers(0, 20))
def test_streaming_gives_the_same_text_in_whole_characters(kind: str, text: str, cut: int) -> None:
    tokenizer = tokenizer_of(kind)
    [ids] = tokenizer.encode([text])
    ids.insert(min(cut, len(ids)), tokenizer.eos)
    stream = tokenizer.stream()
    parts = [stream.push(number) for number in ids]
    assert all(text.startswith("".join(parts[:end])) for end in range(len(parts)))
    assert "".join(parts) + stream.finish() == text


@each_kind
@given(ids=st.lists(st.integers(0, 259), max_size=30))
def test_streaming_equals_decoding_for_whatever_a_model_says(kind: str, ids: list[int]) -> None:
    tokenizer = tokenizer_of(kind)
    stream = tokenizer.stream()
    parts = [stream.push(number) for number in ids]
    assert "".join(parts) + stream.finish() == tokenizer.decode([ids])[0]


def test_an_emoji_split_over_ids_is_held_back() -> None:
    tokenizer = tokenizer_of("bpe")
    [ids] = tokenizer.encode(["the🦊"])
    stream = tokenizer.stream()
    assert [stream.push(number) for number in ids] == ["the", "", "", "", "🦊"]
    assert stream.finish() == ""


def test_a_character_cut_off_at_the_end_is_shown_as_such() -> None:
    tokenizer = tokenizer_of("bpe")
    [ids] = tokenizer.encode(["the🦊"])
    stream = tokenizer.stream()
    assert "".join(stream.push(number) for number in ids[:-1]) == "the"
    assert stream.finish() == "\ufffd"
    assert tokenizer.decode([ids[:-1]]) == ["the\ufffd"]


@each_kind
def test_control_ids_are_skipped_and_unk_is_visible(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.unk) == (0, 1, 2, 3)
    [ids] = tokenizer.encode(["the dog"])
    assert tokenizer.decode([[1, *ids, 2, 0, 0], [], [0]]) == ["the dog", "", ""]
    assert tokenizer.decode([[*ids, 3]]) == ["the dog<unk>"]
    assert tokenizer.pieces([0, 1, 2, 3]) == ["<pad>", "<s>", "</s>", "<unk>"]


def test_pieces_are_readable() -> None:
    tokenizer = tokenizer_of("bpe")
    [ids] = tokenizer.encode([" 龘"])
    assert tokenizer.pieces(ids) == ["▁", "▁", r"\xe9", r"\xbe", r"\x98"]
    [ids] = tokenizer.encode(["the dog"])
    assert "".join(tokenizer.pieces(ids)) == "▁the▁dog"


@pytest.mark.parametrize("number", [-1, -100, 400, 10**6])
def test_an_id_outside_the_vocabulary_is_an_error(number: int) -> None:
    tokenizer = tokenizer_of("bpe")
    assert tokenizer.size == 400
    for use in (lambda: tokenizer.decode([[number]]), lambda: tokenizer.stream().push(number)):
        with pytest.raises(IndexError):
            use()


@each_kind
def test_half_of_a_surrogate_pair_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=r"text 2 holds U\+D83E"):
        tokenizer_of(kind).encode(["fine", "half \ud83e pair"])
    with pytest.raises(UserError, match="surrogate"):
        Tokenizer.learn(["fine", "half \ud83e pair"], TokenizerSettings(kind=kind, size=300))


@each_kind
@given(texts=st.lists(any_text, max_size=3))
def test_hugging_face_reads_the_file_alike(
    kind: str, texts: list[str], tmp_path_factory: pytest.TempPathFactory
) -> None:
    tokenizer, path = tokenizer_of(kind), tmp_path_factory.mktemp("peer") / "tokenizer.json"
    tokenizer.save(path)
    peer = HuggingFaceTokenizer.from_file(str(path))
    ids = tokenizer.encode(texts)
    assert [encoding.ids for encoding in peer.encode_batch(texts)] == ids
    assert peer.decode_batch(ids, skip_special_tokens=False) == texts
    assert peer.get_vocab_size() == tokenizer.size


@each_kind
def test_threads_and_processes_share_one(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    texts = [AWKWARD[i:] + CORPUS for i in range(len(AWKWARD))]
    expected = [tokenizer.encode(batch) for batch in texts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(tokenizer.encode, texts * 4)) == expected * 4
        assert list(pool.map(tokenizer.decode, expected * 4)) == texts * 4
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.fingerprint == tokenizer.fingerprint
    assert [copy.encode(batch) for batch in texts] == expected


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_worker_does_not_wait_for_threads_that_are_gone(tmp_path: Path) -> None:
    tokenizer_of("bpe").save(tmp_path / "tokenizer.json")
    script = """
import os, sys
from regard.text.tokenizer import Tokenizer
tokenizer = Tokenizer.load(sys.argv[1])
texts = ["the dog sleeps"] * 1000
before = tokenizer.encode(texts)
child = os.fork()
if child == 0:
    os._exit(0 if tokenizer.encode(texts) == before else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path / "tokenizer.json"],
        env=os.environ | {"TOKENIZERS_PARALLELISM": "true", "RAYON_NUM_THREADS": "2"},
        stderr=subprocess.PIPE,
        start_new_session=True,
    ) as run:
        try:
            messages = run.communicate(timeout=30)[1]
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            raise
    assert (run.returncode, messages) == (0, b"")


def test_a_pair_of_one(tmp_path: Path) -> None:
    tokenizer = tokenizer_of("bpe")
    pair = TokenizerPair(tokenizer, tokenizer)
    pair.save(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["tokenizer.json"]
    loaded = TokenizerPair.load(tmp_path)
    assert pair.joint
    assert loaded.joint
    assert loaded.source is loaded.target
    assert loaded.fingerprint == pair.fingerprint == tokenizer.fingerprint


def test_a_pair_of_two_and_the_change_between_forms(tmp_path: Path) -> None:
    one, other = tokenizer_of("bpe"), tokenizer_of("unigram")
    pair = TokenizerPair(one, other)
    TokenizerPair(one, one).save(tmp_path)
    pair.save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"tokenizer.source.json", "tokenizer.target.json"}
    loaded = TokenizerPair.load(tmp_path)
    assert not loaded.joint
    assert (loaded.source.fingerprint, loaded.target.fingerprint) == (one.fingerprint, other.fingerprint)
    assert len({loaded.fingerprint, TokenizerPair(other, one).fingerprint, one.fingerprint, other.fingerprint}) == 4
    assert loaded.fingerprint == pair.fingerprint
    TokenizerPair(one, one).save(tmp_path)
    assert TokenizerPair.load(tmp_path).joint


def test_a_pair_without_files_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        TokenizerPair.load(tmp_path)
    tokenizer_of("bpe").save(tmp_path / "tokenizer.source.json")
    with pytest.raises(UserError, match=r"tokenizer\.target\.json"):
        TokenizerPair.load(tmp_path)
