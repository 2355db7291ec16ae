"""Two writers in one place: one of them writes, the other gets an error."""

from __future__ import annotations

from tests.faults.bench import Workbench, fault


@fault(
    "two writers", "two runs started at once with one --out, four times: exactly one runs, the other names the folder"
)
def two_runs(bench: Workbench) -> None:
    for number in range(4):
        arguments = bench.training(f"run-{number}", training__max_steps=400)
        outcomes = [bench.end(process) for process in [bench.start(*arguments), bench.start(*arguments)]]
        codes = sorted(outcome.code for outcome in outcomes)
        assert codes[0] == 0 and codes[1] in (1, 2), f"exit codes {codes} in pair {number}"
        refused = max(outcomes, key=lambda outcome: outcome.code)
        refused.expect(refused.code, f"run-{number}")


@fault("two writers", "an empty, a binary and a foreign lock file are no obstacle")
def strange_locks(bench: Workbench) -> None:
    for number, content in enumerate((b"", b"\xff\x00\x80", b"elsewhere+1+0.00~1")):
        folder = bench.folder / f"run-{number}"
        folder.mkdir()
        (folder / "run.lock").write_bytes(content)
        bench.run(*bench.training(f"run-{number}", training__max_steps=2)).expect(0)


@fault("two writers", "two builders of one cache at once: both succeed, and every byte of it is right")
def two_builders(bench: Workbench) -> None:
    text = bench.folder / "text.txt"
    text.write_text(bench.corpus.read_text(encoding="utf-8") * 300, encoding="utf-8")
    command = ("prepare", text, "--tokenizer", "byte", "--out", bench.folder / "cache")
    for process in [bench.start(*command), bench.start(*command)]:
        bench.end(process).expect(0)
    bench.run("inspect", bench.folder / "cache", "--verify").expect(0)
