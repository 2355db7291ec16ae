"""What is selected from a corpus: filters of each source, a user's function, and duplicates over all sources."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from headrace.data.corpus.sources import Source
from headrace.data.selection import language
from headrace.data.selection.keep import Keep
from headrace.data.selection.minhash import bands_for
from headrace.errors import UsageError

Deduplicate = Literal["none", "exact", "near"]
DEFAULT_THRESHOLD = 0.8
LEAST_THRESHOLD = 0.3


@dataclass(frozen=True)
class Selection:
    """Which documents of a corpus become tokens, as far as it is not an option of a source."""

    deduplicate: Deduplicate = "none"
    near_threshold: float = DEFAULT_THRESHOLD
    keep: Keep | None = None

    def __post_init__(self) -> None:
        if self.deduplicate not in ("none", "exact", "near"):
            raise UsageError(f"deduplicate {self.deduplicate!r}: it is none, exact or near")
        threshold = self.near_threshold
        if (
            isinstance(threshold, bool)
            or not isinstance(threshold, (int, float))
            or not LEAST_THRESHOLD <= threshold <= 1
        ):
            raise UsageError(
                f"near_threshold {threshold!r} is not between {LEAST_THRESHOLD} and 1: it is the share of shingles that"
                " two near duplicates have in common"
            )

    @property
    def is_near(self) -> bool:
        return self.deduplicate == "near"

    @property
    def drops_duplicates(self) -> bool:
        return self.deduplicate != "none"

    @property
    def num_keys(self) -> int:
        """How many keys a document has: the hash of all of it, and those of its bands."""
        return 1 + (bands_for(self.near_threshold)[0] if self.is_near else 0)

    @property
    def facts(self) -> dict[str, str | float]:
        """What a manifest and the name of a cache folder say of this selection; nothing if it selects everything."""
        facts: dict[str, str | float] = {}
        if self.drops_duplicates:
            facts["deduplicate"] = self.deduplicate
        if self.is_near:
            facts["near_threshold"] = self.near_threshold
        if self.keep is not None:
            facts["keep"] = self.keep.identity
        return facts

    def filters(self, source: Source) -> str:
        """Return what identifies the filters of a source; "" if it has none."""
        options = source.filters
        if source.languages:
            options["library"] = language.version()
        if self.keep is not None:
            options["keep"] = self.keep.identity
        return repr(sorted(options.items())) if options else ""

    def check(self, sources: Sequence[Source]) -> None:
        """Refuse languages that are not known, before any work is done."""
        for source in sources:
            if source.languages:
                language.check_languages(source.languages)


EVERYTHING = Selection()
"""The selection of a corpus that is taken as it is."""
