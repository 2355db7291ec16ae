"""Text, names and terminals in other encodings than UTF-8."""

from __future__ import annotations

import os

from tests.faults.bench import Workbench, fault


@fault("encoding", "a UTF-16 text is recognised and named")
def utf_16(bench: Workbench) -> None:
    text = bench.folder / "windows.txt"
    text.write_bytes("The mill wheel turns.\n".encode("utf-16") * 200)
    bench.run("prepare", text, "--out", bench.folder / "cache").expect(1, "UTF-16", "windows.txt")


@fault("encoding", "a Latin-1 text is recognised and named")
def latin_1(bench: Workbench) -> None:
    text = bench.folder / "old.txt"
    text.write_bytes("Die Mühle am Bach läuft über.\n".encode("latin-1") * 200)
    outcome = bench.run("prepare", text, "--tokenizer", "byte", "--out", bench.folder / "cache")
    assert "Latin-1" in outcome.stdout + outcome.stderr, (outcome.stdout + outcome.stderr)[-300:]


@fault("encoding", "a PDF, a zip file and a picture named .txt are refused by what they are")
def binaries(bench: Workbench) -> None:
    for kind, signature in (("PDF", b"%PDF-1.7\n"), ("zip", b"PK\x03\x04\x14\0"), ("PNG", b"\x89PNG\r\n\x1a\n")):
        file = bench.folder / f"{kind}.txt"
        file.write_bytes(signature + os.urandom(4000))
        bench.run("prepare", file, "--out", bench.folder / "cache").expect(1, kind)


@fault("encoding", "ten million bytes of text without a space keep every character")
def no_spaces(bench: Workbench) -> None:
    text = bench.folder / "japanese.txt"
    text.write_text("語" * 3_300_000, encoding="utf-8")
    outcome = bench.run("prepare", text, "--tokenizer", "char", "--out", bench.folder / "cache", "--json").expect(0)
    assert outcome.result["tokenizer"]["vocab_size"] == 3, f"{outcome.result['tokenizer']} instead of 3 tokens"


@fault("encoding", "a corpus file whose name is not UTF-8 is read")
def strange_name(bench: Workbench) -> None:
    folder = bench.folder / "texts"
    folder.mkdir()
    with open(os.fsencode(folder) + b"/m\xfchle.txt", "w", encoding="utf-8") as file:
        file.write(bench.corpus.read_text(encoding="utf-8"))
    bench.run("prepare", folder, "--tokenizer", "byte", "--out", bench.folder / "cache", "--json").expect(0)
    bench.run("inspect", bench.folder / "cache", "--step", 0).expect(0)


@fault("encoding", "a terminal in ISO-8859-1 gets what it can show")
def old_terminal(bench: Workbench) -> None:
    environment = {"PYTHONIOENCODING": "iso-8859-1:strict"}
    bench.run(*bench.training(training__prompt="語 → 水"), environment=environment).expect(0)
    bench.run("generate", bench.folder / "run", "--prompt", "語 → 水", environment=environment).expect(0)


@fault("encoding", "a configuration in Latin-1 is one message with its name")
def latin_1_config(bench: Workbench) -> None:
    config = bench.folder / "config.yaml"
    config.write_bytes("training: {prompt: Mühle}\n".encode("latin-1"))
    bench.run("train", config).expect(2, "config.yaml", "UTF-8")
