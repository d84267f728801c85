"""The options that say how translations are searched for, and what they must be like."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from regard.errors import UserError

if TYPE_CHECKING:
    from regard.search.requests import Request
    from regard.search.settings import SamplingSettings

_Several = Annotated[tuple[str, ...], Parameter(consume_multiple=False, negative="", show_default=False)]

SETTINGS = (
    *("beam", "alpha", "nbest", "extra_tokens", "min_tokens", "min_ratio", "max_ratio", "no_repeat"),
    *("groups", "diversity", "coverage", "split", "split_tokens", "retry", "batch_tokens"),
)
"""Those that are fields of `SearchSettings`, too."""
DRAWING = ("temperature", "top_k", "top_p", "min_p", "epsilon", "seed")


@Parameter(name="*")
@dataclass(frozen=True)
class Searching:
    """How translations are searched for.

    Parameters
    ----------
    beam
        Hypotheses kept at once: more is slower and mostly better; 1 is greedy.
    alpha
        Length penalty: 0 has none, larger values favour longer translations.
    nbest
        Hypotheses to show for each line.
    extra_tokens
        A translation has at most so many tokens more than its source.
    prefix
        Each translation begins with this; its last word may go on, unless a space follows it.
    must
        Each translation holds this word or phrase, or one of several that | separates; may be given several times.
    forbid
        No translation holds this word or phrase; may be given several times.
    min_tokens
        A translation has at least so many tokens.
    min_ratio
        A translation has at least so many times the tokens of its source.
    max_ratio
        A translation has at most so many times the tokens of its source.
    no_repeat
        No so many tokens in a row occur twice.
    groups
        Diverse beam search: the beam is divided into so many groups that are kept from saying the same.
    diversity
        What it costs a group to choose a token that groups before it have just chosen.
    coverage
        Weight of a penalty for translations that leave parts of the source unattended.
    sample
        Draw translations token by token, instead of searching for the most probable one.
    samples
        Draw so many for each line.
    temperature
        How bold to draw: below 1 keeps to what is probable, 0 always takes the most probable token.
    top_k
        Draw from so many of the most probable tokens; 0: from all.
    top_p
        Draw from the most probable tokens that together have this probability.
    min_p
        Draw from tokens at least so probable, as a share of the most probable one's probability.
    epsilon
        Draw from tokens at least so probable.
    seed
        The same line with the same seed gives the same translation, whatever stands beside it.
    mbr
        Minimum Bayes risk: of all that was drawn or found, take what is most like the rest by this metric.
    split
        Which lines are translated sentence by sentence: those that are long, all (always) or none (never).
    split_tokens
        A line with more tokens than this is long. Default: 256 from one language to another, and never more than the
        model can read.
    retry
        Search again for what comes out wrong.
    batch_tokens
        Size of a batch: texts times beam times tokens of the longest. Less needs less memory.
    """

    beam: int | None = None
    alpha: float | None = None
    nbest: int | None = None
    extra_tokens: int | None = None
    prefix: Annotated[str, Parameter(show_default=False)] = ""
    must: _Several = ()
    forbid: _Several = ()
    min_tokens: int | None = None
    min_ratio: float | None = None
    max_ratio: float | None = None
    no_repeat: int | None = None
    groups: int | None = None
    diversity: float | None = None
    coverage: float | None = None
    sample: Annotated[bool, Parameter(negative="")] = False
    samples: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    epsilon: float | None = None
    seed: int | None = None
    mbr: Literal["chrf", "bleu"] | None = None
    split: Literal["long", "always", "never"] | None = None
    split_tokens: int | None = None
    retry: Annotated[bool | None, Parameter(negative="--no-retry")] = None
    batch_tokens: int | None = None

    def settings(self) -> dict[str, Any]:
        """Those of `SearchSettings` that were given."""
        from regard.cli.lines import given_text

        given = self._given(SETTINGS)
        return given | {"forbid": tuple(map(given_text, self.forbid))} if self.forbid else given

    def sampling(self) -> SamplingSettings | None:
        """How to draw, if that is wanted.

        Raises:
            UserError: a value is impossible, or says how to draw where nothing is drawn.
        """
        from regard.search.settings import SamplingSettings

        given = self._given(DRAWING)
        if self.sample or self.samples is not None:
            count = 1 if self.samples is None else self.samples
            return SamplingSettings.parse({**given, "n": count}, "sampling options")
        if given:
            raise UserError(f"--{next(iter(given)).replace('_', '-')} says how to draw: it goes with --sample")
        return None

    def requests(self, texts: Iterable[str]) -> Iterable[str | Request]:
        """The texts, with what their translations must be like.

        Raises:
            UserError: a phrase is empty.
        """
        from regard.cli.lines import given_text
        from regard.search.requests import Request

        prefix, must = given_text(self.prefix), [given_text(each).split("|") for each in self.must]
        wish = Request("", prefix, must)
        return (replace(wish, text=text) for text in texts) if prefix or must else texts

    def wishes(self) -> dict[str, Any]:
        """What was given beside `settings`."""
        return {name: value for name, value in vars(self).items() if name not in (*SETTINGS, "forbid")}

    def _given(self, names: Iterable[str]) -> dict[str, Any]:
        return {name: value for name in names if (value := getattr(self, name)) is not None}
