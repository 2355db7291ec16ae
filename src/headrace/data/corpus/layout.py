"""The files of a corpus with remote ones in it, listed once, so that a second start asks for nothing but the list.

Dividing a corpus into segments reads the footers of parquet files and how tables and archives begin. On this disk that
is done each time. Of remote files it would be requests for data at every start, so the manifest keeps how the list was
divided, and the segments of the same list are those of the manifest.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.data.corpus.discovery import iterate_files
from headrace.data.corpus.remote.addresses import is_remote
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.segments import FileList, Segment
from headrace.data.corpus.sources import Source, SourceFile
from headrace.files import digest


@dataclass(frozen=True)
class Layout:
    """How a list of files was divided into segments, as a manifest keeps it beside the segments."""

    listing: str
    """The hash of the list."""
    fingerprints: list[str]
    """The fingerprint of each segment's files alone; that in the manifest also says what is selected from them."""
    left_out: list[list[int]]
    """For each source, the positions in the list of the files that are in no segment."""
    skipped: dict[str, int]
    """How many files were left out when the list was divided, by reason."""

    @classmethod
    def from_json(cls, facts: Any) -> Layout | None:
        """Return a layout as a manifest has it; None if it has none. Values that no build writes are refused."""
        if facts is None:
            return None
        layout = cls(**facts)
        numbers = [*layout.skipped.values(), *(number for numbers in layout.left_out for number in numbers)]
        if not all(type(number) is int for number in numbers):
            raise ValueError("a layout has counts that are not whole numbers")
        if not all(isinstance(text, str) for text in (layout.listing, *layout.fingerprints, *layout.skipped)):
            raise ValueError("a layout has names that are not text")
        return layout


@dataclass(frozen=True)
class Listing:
    """All files of a corpus."""

    files: list[list[SourceFile]]
    """The files of each source."""
    hash: str
    """Changes whenever one of them, or the way of reading them, may have changed."""

    def describe(self, segments: Sequence[Segment], skipped: Counter[str]) -> Layout:
        """Return how these files were divided: into these segments, with `skipped` files left out."""
        used: list[set[str]] = [set() for _ in self.files]
        for segment in segments:
            used[segment.source].update(file.path for file in segment.files)
        left_out = [
            [position for position, file in enumerate(files) if file.path not in used[source]]
            for source, files in enumerate(self.files)
        ]
        return Layout(self.hash, [segment.fingerprint for segment in segments], left_out, dict(skipped))

    def attach(self, segments: Sequence[Segment], layout: Layout) -> list[Segment] | None:
        """Return the segments of a manifest as they were divided, with their files; None if they are not of these."""
        if layout.listing != self.hash or len(layout.fingerprints) != len(segments):
            return None
        if len(layout.left_out) != len(self.files):
            return None
        rest = []
        for files, positions in zip(self.files, map(set, layout.left_out), strict=True):
            rest.append(iter([file for position, file in enumerate(files) if position not in positions]))
        attached: list[Segment] = []
        for segment, fingerprint in zip(segments, layout.fingerprints, strict=True):
            if segment.source >= len(rest):
                return None
            if segment.ordinal and attached:
                own = attached[-1].files
            else:
                own = FileList(list(itertools.islice(rest[segment.source], segment.num_files)))
            if len(own) != segment.num_files or not own or own[0].path != segment.path:
                return None
            attached.append(replace(segment, fingerprint=fingerprint, files=own))
        return None if any(next(files, None) for files in rest) else attached


def list_remote(sources: Sequence[Source], skipped: Counter[str]) -> Listing | None:
    """List the files of a corpus; None if all of it is on this disk. What is left out is counted in `skipped`."""
    if not any(is_remote(path) for source in sources for path in source.paths):
        return None
    files = [list(iterate_files(source, skipped)) for source in sources]
    readings = [f"{source.reading_hash} {source.as_plain_text}" for source in sources]
    fingerprints = [
        f"{number} {file.root_length} {file.fingerprint}" for number, own in enumerate(files) for file in own
    ]
    return Listing(files, digest("listing-1", repr(current_scale()), *readings, *fingerprints))
