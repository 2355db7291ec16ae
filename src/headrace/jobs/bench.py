"""Bench: headrace and its peers on the same bytes, in one run, as ratios."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from headrace.bench import loaders, tokenize, train
from headrace.bench.loaders import LoaderOptions
from headrace.bench.peer import Result, Say, bench_corpus, choose_peers
from headrace.data.corpus.sources import Source, as_sources, standard_library
from headrace.machine.facts import environment

LOADER_TOKENIZER = "bpe:16000"


@dataclass(frozen=True)
class Contest:
    """The text of a comparison, the peers that take part, and who is told what is running."""

    paths: Sequence[str]
    """Files, folders and globs; none: the Python standard library on this disk."""
    megabytes: float
    """Size of the text that is made from them."""
    only: Sequence[str]
    """Parts of the names of the peers that take part; none: all of them."""
    skip: Sequence[str]
    """Parts of the names of the peers that are left out."""
    say: Say

    def sources(self) -> list[Source]:
        return as_sources(list(self.paths) if self.paths else standard_library())


def compare_loaders(
    contest: Contest, batch_sizes: Sequence[int], options: LoaderOptions
) -> Iterator[tuple[int, list[Result]]]:
    """Yield each batch size and the results of all peers with it, as soon as the last of them has ended."""
    peers = choose_peers(loaders.PEERS, contest.only, contest.skip)
    with bench_corpus(contest.sources(), contest.megabytes, LOADER_TOKENIZER) as corpus:
        for size in batch_sizes:
            results = loaders.bench_loaders(corpus, peers, replace(options, batch_size=size), contest.say)
            yield size, _say_problems(results, contest.say)


def compare_trainers(contest: Contest, preset: str, num_steps: int, num_repeats: int) -> list[Result]:
    """Train equal GPT-2s of a preset's size with every peer; the repeats of all of them take turns."""
    peers = choose_peers(train.PEERS, contest.only, contest.skip)
    config = train.bench_config(preset)
    with bench_corpus(contest.sources(), contest.megabytes, f"bpe:{config.model.vocab_size}") as corpus:
        return train.bench_train(corpus, peers, config, num_steps, num_repeats, contest.say)


def compare_tokenizers(contest: Contest, vocabulary: int) -> list[Result]:
    """Encode the same text in memory with every peer, all with one vocabulary of this size."""
    peers = choose_peers(tokenize.PEERS, contest.only, contest.skip)
    with bench_corpus(contest.sources(), contest.megabytes, f"bpe:{vocabulary}") as corpus:
        return _say_problems(tokenize.bench_tokenize(corpus, peers, contest.say), contest.say)


def bench_record(benchmark: str, options: dict[str, Any], results: dict[str, list[Result]]) -> dict[str, Any]:
    """Return what `bench --json` prints: the options, the results by batch size, preset or vocabulary, the machine."""
    return {
        "benchmark": benchmark,
        "command_options": options,
        "results": {key: [result.as_json() for result in some] for key, some in results.items()},
        "machine": environment(),
    }


def _say_problems(results: Iterator[Result], say: Say) -> list[Result]:
    """Collect the results, and tell at once which peer is missing or has failed."""
    seen = []
    for result in results:
        if result.status != "ok":
            say(result.peer, f"{result.status}: {result.message}")
        seen.append(result)
    return seen
