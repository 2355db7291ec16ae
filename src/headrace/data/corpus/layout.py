"""The files of a corpus with remote ones in it, listed once, so that a second start asks for nothing but the list.

Dividing a corpus into segments reads the footers of parquet files and how tables and archives begin. On this disk that
is done each time. Of remote files it would be requests for data at every start, so the hash of the list is kept in the
manifest, and segments of the same list are those of the manifest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from headrace.data.corpus.discovery import iterate_files
from headrace.data.corpus.remote.addresses import is_remote
from headrace.data.corpus.scale import current_scale
from headrace.data.corpus.segments import Segment
from headrace.data.corpus.sources import Source, SourceFile
from headrace.files import digest


@dataclass(frozen=True)
class Listing:
    """All files of a corpus."""

    files: list[list[SourceFile]]
    """The files of each source."""
    hash: str
    """Changes whenever one of them, or the way of reading them, may have changed."""

    def attach(self, segments: Sequence[Segment]) -> list[Segment] | None:
        """Return the segments of a manifest with their files; None if they are not of these files."""
        rest = [iter(files) for files in self.files]
        attached: list[Segment] = []
        try:
            for segment in segments:
                if segment.ordinal:
                    files: Sequence[SourceFile] = attached[-1].files
                else:
                    files = [next(rest[segment.source]) for _ in range(segment.num_files)]
                if files[0].path != segment.path:
                    return None
                attached.append(replace(segment, files=files))
        except (StopIteration, IndexError, RuntimeError):
            return None
        return attached


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
