"""A passage to its sentences and back: whatever stands between them is kept.

Where a sentence ends is a matter of its language (`sentencex` knows the abbreviations and marks of some 300). Ours is
the rest: a line break always ends a sentence, and a sentence that is too long for what it is meant for is cut.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sentencex import segment

_BREAKS = "\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029"
_LINE = re.compile(f"[^{_BREAKS}]*[{_BREAKS}]+|[^{_BREAKS}]+")
_CLAUSE = re.compile(r"[,;:.!?…–—،؛؟][\"'”’»)\]]*(?=\s)|[，、；：。！？．」』）]")
"""The end of a clause, or of a sentence that was not known as one."""
_WORD = re.compile(r"\s+")
_UNSPACED = re.compile(
    "[\u2e80-\u2fdf\u3001-\u30ff\u31f0-\u31ff\u3400-\u9fff\uf900-\ufaff\uff01-\uff9f\U00020000-\U0003ffff]"
)
"""Chinese and Japanese characters and marks, between which no space is written."""
_UNSPACED_LANGUAGES = frozenset(("zh", "ja", "yue", "wuu", "lzh", "zho", "cmn", "jpn"))

_UNSEEN = "".join(filter(str.isspace, map(chr, range(0x3001)))) + (
    "\u00ad\u200b\u200c\u200d\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2060\u2066\u2067\u2068\u2069\ufeff"
)
"""White space, and characters that only say how others are put."""
_FLAGS = re.compile("[\U0001f1e6-\U0001f1ff]+")
"""Letters of flags; two in a row are one flag."""
_JOINER = "\u200d"
_MODIFIER = re.compile("[\u200c\u200d\ufe00-\ufe0f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
"""What belongs to the character before it, besides marks: joiners, variation selectors, skin tones, tags of flags."""


@dataclass(frozen=True)
class Passage:
    """A text as pieces and the gaps around them; there is one gap more than there are pieces."""

    pieces: tuple[str, ...]
    """Each says something, and begins and ends with no white space."""
    gaps: tuple[str, ...]
    """White space and what says nothing: before the first piece, between pieces, after the last."""

    @classmethod
    def of(cls, parts: Iterable[str], says: Callable[[str], bool]) -> Passage:
        """From a text in parts, which put together are the text; `says` is whether one says something."""
        pieces, gaps = [], [""]
        for part in parts:
            before, core, after = edges(part) if says(part) else (part, "", "")
            gaps[-1] += before
            if core:
                pieces.append(core)
                gaps.append(after)
        return cls(tuple(pieces), tuple(gaps))

    def join(self, pieces: Sequence[str]) -> str:
        """Other pieces in the same gaps; its own give the text that it was made from."""
        return _interleave(self.gaps, pieces)

    def join_translated(self, pieces: Sequence[str], language: str | None = None) -> str:
        """Translations of the pieces, in the same gaps except where the two languages put spaces differently.

        Chinese and Japanese have none between sentences: a single space beside one of their characters is dropped, and
        a gap without a space that stood beside one becomes a space for other writing. `language` is that of the
        translations; without it, their characters alone decide.
        """
        may_drop = language is None or primary(language) in _UNSPACED_LANGUAGES
        gaps = list(self.gaps)
        for place in range(1, len(pieces)):
            drop = may_drop and _meet_unspaced(pieces[place - 1], pieces[place])
            if gaps[place] == " " and drop:
                gaps[place] = ""
            elif not gaps[place] and not drop and _meet_unspaced(self.pieces[place - 1], self.pieces[place]):
                gaps[place] = " "
        return _interleave(gaps, pieces)


def split(text: str, language: str | None = None, fits: Callable[[str], bool] | None = None) -> Passage:
    """A text in sentences; `join` of them gives the text back.

    Args:
        language: a code such as `de` or `pt-BR`. An unknown one is taken for one that marks its sentences as most do.
            Where it is given, marks and pictures that stand alone (`---`) say nothing and belong to the gaps; without
            it, the text may be no language at all, and all that is visible is in the pieces.
        fits: a sentence for which this is false is cut into parts for which it is true: after a clause, or between
            words, or between characters, near the middle. A single character is never cut.

    Raises:
        UnicodeEncodeError: the text holds half of a surrogate pair.
    """
    code = primary(language or "")
    sentences = (sentence for line in _LINE.findall(text) for sentence in _sentences(line, code))
    parts = sentences if fits is None else (part for sentence in sentences for part in _cut(sentence, fits))
    return Passage.of(parts, visible if language is None else _has_words)


def edges(text: str) -> tuple[str, str, str]:
    """What stands before a text without being seen, the text, and what stands after it; put together the same again."""
    core = text.strip(_UNSEEN)
    return text.partition(core) if core else (text, "", "")


def visible(text: str) -> bool:
    """Whether there is anything to see: neither white space nor control or format characters alone."""
    return any(not (letter.isspace() or unicodedata.category(letter) in ("Cc", "Cf")) for letter in text)


def _has_words(text: str) -> bool:
    return any(map(str.isalnum, text))


def primary(language: str) -> str:
    """The language of a code without script and region: `zh` of `zh-Hant-TW` and `zh_CN`."""
    return re.split("[-_]", language, maxsplit=1)[0].lower()


def _sentences(line: str, code: str) -> list[str]:
    found = segment(code, line)
    return found if "".join(found) == line else [line]


def _cut(text: str, fits: Callable[[str], bool]) -> Iterator[str]:
    """A text that is too long in halves, and those in halves where they are still."""
    core = text.strip()
    if len(core) < 2 or fits(core):
        yield text
        return
    begin = text.index(core)
    middle = begin + _near_middle(core)
    yield from _cut(text[:middle], fits)
    yield from _cut(text[middle:], fits)


def _near_middle(text: str) -> int:
    """The best place to cut a text of at least two characters, as near to its middle as one of its kind can be."""
    middle, quarter = len(text) // 2, len(text) // 4
    for kind in (_CLAUSE, _WORD):
        ends = (match.end() for match in kind.finditer(text, quarter, len(text) - quarter))
        if places := [place for place in ends if place < len(text)]:
            return min(places, key=lambda place: abs(place - middle))
    whole = (place for place in range(middle, quarter, -1) if not _inside_character(text, place))
    return next(whole, middle)


def _inside_character(text: str, place: int) -> bool:
    """Whether what people take for one character goes on here (nearly Unicode's grapheme clusters, UAX 29)."""
    letter, before = text[place], text[place - 1]
    if _FLAGS.match(letter) and (flags := _FLAGS.match(text[place - 1 :: -1])):
        return len(flags[0]) % 2 == 1
    return before == _JOINER or bool(_MODIFIER.match(letter)) or unicodedata.category(letter) in ("Mn", "Me", "Mc")


def _meet_unspaced(left: str, right: str) -> bool:
    return bool(_UNSPACED.search(left[-1:] + right[:1]))


def _interleave(gaps: Sequence[str], pieces: Sequence[str]) -> str:
    first, *rest = gaps
    return first + "".join(piece + gap for piece, gap in zip(pieces, rest, strict=True))
