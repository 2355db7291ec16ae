"""The files of a run directory that describe its corpus: corpus.json and ledger.json."""

from __future__ import annotations

from dataclasses import asdict

from headrace.data.explain.description import describe
from headrace.data.loader import Loader
from headrace.run.config import Config
from headrace.run.directory import RunFolder
from headrace.run.session.mixture import RunMixture


class CorpusFiles:
    """A writer of both files, once all of the corpus is tokenised."""

    def __init__(self, folder: RunFolder, loader: Loader, config: Config) -> None:
        self._folder, self._loader, self._config = folder, loader, config
        self._are_written = False

    def write_when_known(self) -> None:
        """Write the files, unless that is done, or the corpus is not known yet."""
        if self._are_written or not self._loader.cache.is_complete:
            return
        self._are_written = True
        config = self._config
        corpus = describe(self._loader.cache, config.training.sequence_length, config.data.packing)
        mixture = RunMixture.of(config).as_record()
        self._folder.write_json("corpus.json", {**corpus, "mixture": mixture.model_dump() if mixture else None})
        self._folder.write_json("ledger.json", [asdict(ledger) for ledger in self._loader.ledger()])
