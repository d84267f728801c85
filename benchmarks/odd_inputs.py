"""What a translation model makes of text that it was not made for.

    python benchmarks/odd_inputs.py MODEL [--only KIND ...] [--show]

Three hundred inputs of thirty kinds are translated twice: each as a whole by one search, and as `Translator` does it by
default, in sentences where they are long and searched for again where they come out wrong. The table counts, for each
kind, what is wrong before and after, and how it was mended. With --show, the inputs and both outputs are printed too.
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from rich.console import Console
from rich.table import Table

from regard.pipelines import Translator
from regard.search.trouble import Mended, Mender, Trouble

EACH = 10

ADJECTIVES = ["small", "big", "old", "young", "red", "blue", "smiling", "wet", "tired", "colorful"]
NOUNS = ["man", "woman", "dog", "child", "boy", "girl", "musician", "worker", "horse", "crowd"]
VERBS = ["runs", "walks", "plays", "sits", "stands", "jumps", "sleeps", "waits", "dances", "sings"]
PLACES = ["street", "park", "house", "water", "city", "market", "beach", "snow", "kitchen", "field"]
RARE = ["yesterday", "government", "economy", "quantum", "theorem", "invoice", "because", "although"]
WORDS = [*ADJECTIVES, *NOUNS, *VERBS, *PLACES, *RARE]
NAMES = ["Angela Merkel", "New York", "NASA", "Dr. O'Neill", "iPhone 15", "São Paulo", "Li Wei", "K2", "U.S.A.", "Zoë"]
GERMAN = "Ein Mann mit rotem Hut läuft gestern schnell über die alte Brücke."
RUSSIAN = "Мужчина в красной шляпе вчера быстро бежал по старому мосту."
CHINESE = "昨天一个戴红帽子的男人很快地跑过了那座古老的桥。"
OTHERS = [
    GERMAN,
    GERMAN.lower().replace(".", " ."),
    "Un homme avec un chapeau rouge court vite sur le vieux pont hier.",
    "Mies punaisessa hatussa juoksi eilen nopeasti vanhan sillan yli.",
    RUSSIAN,
    "Ένας άντρας με κόκκινο καπέλο έτρεξε γρήγορα στη γέφυρα χθες.",
    CHINESE,
    "昨日、赤い帽子の男が古い橋を速く走って渡りました。",
    "कल लाल टोपी वाला एक आदमी पुराने पुल पर तेज़ी से दौड़ा।",
    "เมื่อวานผู้ชายใส่หมวกแดงวิ่งเร็วข้ามสะพานเก่า",
]
RIGHT_TO_LEFT = ["رجل يرتدي قبعة حمراء ركض بسرعة", "גבר עם כובע אדום רץ מהר אתמול", "مردی با کلاه قرمز دیروز دوید"]
EMOJI = ["😀", "🎉", "👍🏽", "👨\u200d👩\u200d👧\u200d👦", "🇩🇪", "❤️", "🏳️\u200d🌈", "🐕", "🚀", "1️⃣"]
CODE = [
    "for (int i = 0; i < n; i++) { sum += x[i]; }",
    "SELECT name FROM users WHERE id = 42;",
    "def f(x): return x ** 2 if x else None",
    'git commit -m "fix" && git push --force',
    '{"a": [1, 2, null], "b": {"c": true}}',
    "$ curl -s https://a.b | jq '.[0]'",
    "C:\\Users\\me\\file.txt",
    "x = y ≤ z ∧ ∀ε>0 ∃δ",
    "AAAAB3NzaC1yc2EAAAADAQABAAABAQC7",
    "550e8400-e29b-41d4-a716-446655440000",
]
# fmt: off
MARKUP = ["<p>{}</p>", "<b>{}", "{}<br/>", '<a href="x.html">{}</a>', "&lt;{}&gt;",
          "# {}", "* {}", "[{}](b.md)", "| {} |", "\\emph{{{}}}"]
ADDRESSES = ["https://{}.com", "http://{}.org/a/b?c=1&d=%20", "www.{}.de", "{}@example.com", "ftp://{}/x.tar.gz",
             "@{}", "#{}", "/usr/lib/{}.so", "{}.py", "see https://{}.net now"]
INVISIBLE = ["\u200b", "\u200b{}\u200b", "\ufeff{}", "{}\x01", "\x1b[31m{}\x1b[0m",
             "{}\u202e", "\xad", "{}\x7f", " \u3000 ", "\t{}\t"]
TYPOGRAPHY = ["“{}”", "«{}»", "{}…", "—{}—", "({})", "{}!!!!!!", "???{}", "~*{}*~", "{} ™®©", "½ {} × 2²"]
MARKS = ["...", "!!!!", "?!?!?!", "---", "*****", "___", "///", "()", ";;;;", "=" * 45]
# fmt: on


class Source:
    """Text by chance, the same in every run."""

    def __init__(self, seed: str) -> None:
        self.draw = random.Random(seed)

    def word(self) -> str:
        return self.draw.choice(WORDS)

    def words(self, count: int) -> str:
        return " ".join(self.word() for _ in range(count))

    def caption(self) -> str:
        adjective, noun, verb, place = map(self.draw.choice, (ADJECTIVES, NOUNS, VERBS, PLACES))
        return f"a {adjective} {noun} {verb} in the {place}"

    def characters(self, first: int, last: int, count: int) -> str:
        return "".join(chr(self.draw.randint(first, last)) for _ in range(count))

    def shuffled(self, text: str) -> str:
        return "".join(self.draw.sample(text, len(text)))


def long(s: Source, n: int) -> str:
    """5,000 characters."""
    parts: list[Callable[[], str]] = [
        lambda: s.caption() + " . ",
        lambda: s.caption() + ", ",
        lambda: s.words(9) + " ",
        s.word,
        lambda: "x",
        lambda: CHINESE,
        lambda: RUSSIAN + " ",
        lambda: "😀",
        lambda: "1 ",
        lambda: s.characters(33, 0x2FFF, 50),
    ]
    text = ""
    while len(text) < 5000:
        text += parts[n]()
    return text[:5000]


KINDS: dict[str, Callable[[Source, int], str]] = {
    "a word": lambda s, n: s.word(),
    "an unknown word": lambda s, n: s.characters(97, 122, 3 + n),
    "a name": lambda s, n: NAMES[n],
    "a letter or mark": lambda s, n: "aZ?.(;-/é我"[n],
    "digits": lambda s, n: str(s.draw.randint(0, 10 ** (n + 1))),
    "numbers": lambda s, n: f"{s.draw.randint(1, 9**6):,}.{n} {'€$£%°'[n % 5]}",
    "dates and times": lambda s, n: f"20{n}4-1{n % 3}-0{n} {n:02}:{n}5" if n % 2 else f"{n + 1}/3/19{n}9, {n} p.m.",
    "counting": lambda s, n: " ".join(map(str, range(n, 6 * n + 5))),
    "addresses": lambda s, n: ADDRESSES[n].format(s.word()),
    "capitals": lambda s, n: s.caption().upper(),
    "title case": lambda s, n: s.caption().title(),
    "no spaces": lambda s, n: s.words(n + 2).replace(" ", ""),
    "single letters": lambda s, n: " ".join(s.words(4)),
    "letters shuffled": lambda s, n: s.shuffled(s.caption()),
    "word salad": lambda s, n: s.words(5 * n + 5),
    "another language": lambda s, n: OTHERS[n],
    "right to left": lambda s, n: " ".join(RIGHT_TO_LEFT[: n % 3 + 1]) + "." * (n % 2),
    "any characters": lambda s, n: s.characters(0x100, 0x2FFF, 5 * n + 1),
    "emoji": lambda s, n: "".join(EMOJI[: n + 1]) if n % 2 else f"{s.caption()} {EMOJI[n]}",
    "invisible": lambda s, n: INVISIBLE[n].format(s.caption()),
    "marks": lambda s, n: MARKS[n],
    "typography": lambda s, n: TYPOGRAPHY[n].format(s.caption()),
    "markup": lambda s, n: MARKUP[n].format(s.caption()),
    "code": lambda s, n: CODE[n],
    "a word repeated": lambda s, n: " ".join([s.word()] * (2 + n**3)),
    "a letter repeated": lambda s, n: s.draw.choice("ahou1!") * (3 + n**3),
    "a sentence repeated": lambda s, n: " ".join([f"{s.caption()} ."] * (2 + n)),
    "several sentences": lambda s, n: " ".join(f"{s.caption()} ." for _ in range(n + 2)),
    "lines": lambda s, n: "\n\n".join(f"- {s.caption()}" for _ in range(n + 2)),
    "5,000 characters": long,
}


class Outcome(NamedTuple):
    """One input, translated by one search and by `Translator`."""

    text: str
    before: Mended
    after: Mended


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--only", metavar="KIND", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--show", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.getLogger("regard").setLevel(logging.ERROR)
    translator = Translator.load(options.model)
    outcomes = {}
    for kind in options.only:
        source = Source(kind)
        outcomes[kind] = translated(translator, [KINDS[kind](source, n) for n in range(EACH)])
        if options.show:
            show(kind, outcomes[kind])
        print(f"{len(outcomes)} of {len(options.only)} kinds", file=sys.stderr, flush=True)
    Console(width=160).print(table(outcomes))


def translated(translator: Translator, texts: list[str]) -> list[Outcome]:
    languages = translator.languages
    looker = Mender(
        translator.tokenizers,
        translator.settings,
        lambda *_: [],
        source_language=languages.source,
        target_language=languages.target,
    )
    alone = translator.hypotheses(texts, split="never", retry=False)
    before = [looker.look(text, each) for text, each in zip(texts, alone, strict=True)]
    return [Outcome(*each) for each in zip(texts, before, translator.hypotheses(texts), strict=True)]


def table(outcomes: dict[str, list[Outcome]]) -> Table:
    shown = Table("kind", "inputs", "wrong before", "wrong after", "loops", "empty", "mended by")
    rows = {**outcomes, "all": [each for some in outcomes.values() for each in some]}
    for kind, some in rows.items():
        troubles = Counter(each.after.trouble for each in some)
        remedies = Counter(each.after.remedy for each in some if each.after.remedy is not None)
        shown.add_row(
            kind,
            str(len(some)),
            str(sum(each.before.trouble is not None or each.before.shortened for each in some)),
            str(sum(each.after.trouble is not None or each.after.shortened for each in some)),
            str(troubles[Trouble.LOOP]),
            str(troubles[Trouble.EMPTY]),
            ", ".join(f"{name} ({count})" for name, count in remedies.most_common()),
        )
    return shown


def show(kind: str, outcomes: list[Outcome]) -> None:
    print(f"\n{kind}")
    for text, before, after in outcomes:
        print(f"\n{text[:300]!r}")
        for each in (before, after):
            print(f"  {each.best.text[:400]!r}  [{each.trouble and each.trouble.name}; {each.remedy}]", flush=True)


if __name__ == "__main__":
    main()
