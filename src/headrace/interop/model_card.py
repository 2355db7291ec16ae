"""The card of a model on the hub: what it was trained on, how, on what machine, and how good it got."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from headrace.units import human_bytes, human_count, human_energy, human_time

RECIPE = {
    "model": ("arch", "d_model", "num_layers", "num_heads", "context", "vocab_size"),
    "data": ("tokenizer", "packing"),
    "training": ("optimizer", "learning_rate", "schedule", "batch_size", "max_length", "precision", "seed"),
}
"""Keys of a configuration that the card lists."""
MOST_SAMPLE_CHARACTERS = 1000


@dataclass(frozen=True)
class CardFacts:
    """What a model card is written from; what is not known is left out of it."""

    name: str
    repo: str
    license: str
    config: Mapping[str, Mapping[str, Any]]
    num_steps: int
    num_tokens: int
    summary: Mapping[str, Any]
    """summary.json of the run; empty where the run has not ended."""
    environment: Mapping[str, Any]
    base_model: str = ""
    """The model that training began from, as others may read it; empty: random weights."""
    is_base_public: bool = False
    """Whether that is a name of the hub."""


def model_card(facts: CardFacts) -> str:
    """Return README.md of a model repository, with the metadata that the hub reads at its beginning."""
    metadata: dict[str, Any] = {
        "license": facts.license, "library_name": "transformers", "pipeline_tag": "text-generation",
        "tags": ["headrace"],
    }  # fmt: skip
    if facts.is_base_public:
        metadata["base_model"] = facts.base_model
    began = f"that goes on from {facts.base_model}, trained further" if facts.base_model else "trained from scratch"
    parts = [
        f"---\n{yaml.safe_dump(metadata, sort_keys=False)}---\n",
        f"# {facts.name}\n",
        f"A language model {began} with headrace, on {facts.num_tokens:,} tokens"
        f" ({facts.num_steps:,} updates). It continues text; it was not taught to follow instructions.\n",
        "```python\nfrom transformers import pipeline\n\n"
        f'write = pipeline("text-generation", model="{facts.repo}")\nprint(write("Once")[0]["generated_text"])\n```\n',
    ]
    for heading, rows in (
        ("Data", _data(facts)),
        ("Recipe", _recipe(facts)),
        ("Losses", _losses(facts.summary)),
        ("Hardware", _hardware(facts)),
    ):
        lines = [f"| {name} | {_cell(value)} |" for name, value in rows]
        if lines:
            parts.append("\n".join([f"## {heading}\n", "| | |", "| --- | --- |", *lines, ""]))
    sample = str(facts.summary.get("last_sample") or "")[:MOST_SAMPLE_CHARACTERS]
    if sample:
        fenced = "\n".join(f"    {line}" for line in sample.splitlines())
        parts.append(f"## A sample of its text\n\n{fenced}\n")
    return "\n".join(parts)


def _data(facts: CardFacts) -> Iterator[tuple[str, object]]:
    """Yield the text trained on: names without folders, which are nobody's business."""
    sources = facts.config.get("data", {}).get("sources") or ()
    paths = [source.get("path", "") if isinstance(source, Mapping) else source for source in sources]
    names = [str(path).rstrip("/").rpartition("/")[2] for path in paths if isinstance(path, str)]
    if names:
        yield "text", ", ".join(names)
    corpus = facts.summary.get("corpus") or {}
    if corpus.get("bytes"):
        yield "size", human_bytes(corpus["bytes"])
    if corpus.get("documents"):
        yield "documents", f"{corpus['documents']:,}"
    if corpus.get("epoch_tokens"):
        yield "tokens of one pass", f"{round(corpus['epoch_tokens']):,}"
        yield "passes", f"{facts.num_tokens / corpus['epoch_tokens']:.2f}"


def _recipe(facts: CardFacts) -> Iterator[tuple[str, object]]:
    if facts.summary.get("parameters"):
        yield "parameters", human_count(facts.summary["parameters"])
    for section, keys in RECIPE.items():
        for key in keys:
            value = facts.config.get(section, {}).get(key)
            if value not in (None, "", 0):
                yield f"`{section}.{key}`", value


def _losses(summary: Mapping[str, Any]) -> Iterator[tuple[str, object]]:
    for name, key in (
        ("training loss (nats per token)", "smoothed_loss"),
        ("validation loss (nats per token)", "validation_loss"),
        ("lowest validation loss", "best_validation_loss"),
        ("validation bits per byte", "validation_bits_per_byte"),
    ):
        if summary.get(key) is not None:
            yield name, f"{summary[key]:.4f}"


def _hardware(facts: CardFacts) -> Iterator[tuple[str, object]]:
    environment, summary = facts.environment, facts.summary
    if environment.get("processor"):
        yield "processor", f"{environment['processor']}, {environment.get('cores') or 'unknown number of'} cores"
    if environment.get("memory_bytes"):
        yield "memory", human_bytes(environment["memory_bytes"])
    if summary.get("train_seconds"):
        yield "training time", human_time(summary["train_seconds"])
        yield "speed", f"{summary.get('tokens_per_second', 0):,.0f} tokens/s"
        yield "energy", _energy(summary.get("energy_joules") or {})
    versions = environment.get("versions") or {}
    if versions:
        yield "versions", ", ".join(f"{name} {versions[name]}" for name in ("headrace", "torch") if name in versions)


def _energy(joules: Mapping[str, float]) -> str:
    if not joules:
        return "unknown: the machine did not say"
    return f"{human_energy(sum(joules.values()))} ({', '.join(joules)}), other programs included"


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
