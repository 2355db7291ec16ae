"""Absurd values end at once with a sentence."""

from __future__ import annotations

from tests.faults.bench import Workbench, fault


@fault("value", "absurd configuration values are refused by their key")
def absurd_values(bench: Workbench) -> None:
    for key, value in (
        ("model.num_layers", "1000000"), ("model.d_model", "100000000"), ("training.learning_rate", "inf"),
        ("training.learning_rate", "nan"), ("training.seed", str(2**64)), ("training.max_minutes", "inf"),
    ):  # fmt: skip
        bench.run("train", bench.corpus, f"{key}={value}").expect(2, key)


@fault("value", "bpe:1000000000 is refused")
def absurd_vocabulary(bench: Workbench) -> None:
    bench.run("train", bench.corpus, "data.tokenizer=bpe:1000000000").expect(2, "bpe:1000000000")


@fault("value", "training.learning_rate=1e9: stops with a message, and the last good checkpoint stays")
def diverging_run(bench: Workbench) -> None:
    bench.run(*bench.training(training__max_steps=10)).expect(0)
    good = bench.weights()
    outcome = bench.run(
        "train", "--resume", bench.folder / "run", "training.max_steps=200", "training.learning_rate=1e30",
        "training.save_every=1", "training.evaluate_every=1", "--json",
    )  # fmt: skip
    outcome.expect(1, "learning_rate")
    assert bench.weights() == good, "a bad checkpoint replaced the last good one"


@fault("value", "a text of a few words: says that there is too little to validate on, and reports no loss of 0")
def tiny_corpus(bench: Workbench) -> None:
    bench.corpus.write_text("The mill wheel turns. " * 12, encoding="utf-8")
    outcome = bench.run(*bench.training(training__max_steps=4)).expect(0)
    assert outcome.result["validation_loss"] is None or outcome.result["validation_loss"] > 0.01, outcome.result[
        "validation_loss"
    ]
