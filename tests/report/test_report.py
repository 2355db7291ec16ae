"""Reports: what they say, of whole and of broken runs, and that nothing from outside gets through as markup."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from headrace.errors import ReportError
from headrace.jobs.train import train
from headrace.report import report
from headrace.report.read import read_run
from headrace.run.directory import RunFolder
from tests.conftest import make_text
from tests.report.run_folder import HOSTILE, STAGES, configure, write_run
from tests.run.tiny_run import settings

Command = Callable[..., tuple[int, str, str]]
SECTIONS = (
    "story samples loss bottleneck recommendations pipeline wait cpu memory flops corpus progress scaling configuration"
).split()


class Tags(HTMLParser):
    """Every tag, with its attributes, and all text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_every_section_is_there_and_nothing_is_fetched_or_run(tmp_path: Path) -> None:
    page = Tags(report([write_run(tmp_path / "one")]))
    assert page.ids == SECTIONS
    assert not {"img", "iframe"} & set(page.tags)
    assert page.tags.count("script") == 1
    assert all(link.startswith("#") or link == "data:," for link in page.links)
    assert page.tags.count("svg") >= 16, "each chart is two of them"
    assert HOSTILE in page.text
    figures = ("5.0 MiB", "900 + 60 + 40 = 1,000", "1.8 cores", "nul bytes", "190 GFLOP/s", "every 10 steps", "3.0 MiB")
    assert all(figure in page.text for figure in figures)


def test_the_numbers_are_those_of_the_run(tmp_path: Path) -> None:
    run = read_run(write_run(tmp_path / "one", num_steps=40))
    assert sum(share.percent for share in run.shares) == pytest.approx(100)
    assert {share.stage: share.seconds for share in run.shares}["forward"] == pytest.approx(40 * STAGES["forward"])
    assert run.tokens == 40 * 4096
    assert run.cpu_cores == pytest.approx(1.8)
    assert run.data_wait_percent == pytest.approx(100 * 0.001 / 0.091, rel=0.01)
    assert run.peak_memory_bytes == 600 << 20
    assert run.steps_per_epoch == 100


def test_a_resumed_run_counts_processor_time_anew(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", num_steps=40)
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    began = lines[20]["cpu_s"]
    for line in lines[20:]:
        line["cpu_s"] -= began
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert read_run(folder).cpu_cores == pytest.approx(1.8)


def test_advice_names_values_and_leaves_out_what_was_measured(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "one", evaluation=0.5, optimizer=0.1)
    configure(folder, "training", evaluate_every=1)
    text = Tags(report([folder])).text
    assert "training.evaluate_every=2" in text, "this run evaluated after every step"
    assert "training.batch_size=32" in text
    slower = {"changes": {"training.batch_size": 32}, "gain_percent": -3.0, "spread_percent": 1.0}
    findings = [{**slower, "changes_result": True, "note": ""}]
    (folder / "tune.json").write_text(json.dumps({"findings": findings}))
    assert "training.batch_size=32" not in Tags(report([folder])).text


@pytest.mark.parametrize("stage", ["data wait", "aggregation", "optimizer", "evaluation"])
def test_a_delay_is_found_and_named(tmp_path: Path, stage: str) -> None:
    page = Tags(report([write_run(tmp_path / "slow", **{stage: 0.5})]))
    bottleneck = page.text.split("What limited it")[2].split("What to do next")[0]
    assert f"{stage} takes" in bottleneck.lower()


def test_several_runs_are_overlaid(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name) for name in ("first", "second")]
    text = report(folders)
    assert text.count("first, training") == text.count("second, training") > 0
    assert "first" in report(folders, markdown=True)
    same = [write_run(tmp_path / place / "run") for place in ("here", "there")]
    assert all(str(folder) in report(same) for folder in same), "runs of one name are told apart"


def test_measured_scaling_is_shown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "one")
    way = {"processes": 2, "threads": 1, "tokens_per_second": 1234.0, "speedup": 1.91, "expected_speedup": None}
    way |= {"efficiency_percent": 95.0, "memory_bytes_per_worker": 300 << 20, "aggregation_percent": 1.3}
    way |= {"by": "processes", "cores": 2, "cpu_cores": 1.9}
    scaling = {"cores": 2, "tokens_per_update": 4096, "sharding": "ddp", "measured": [way], "measured_at": "today"}
    scaling |= {"all_reduce_bytes_per_second": 1e9}
    environment = json.loads((run / "environment.json").read_text())
    (run / "environment.json").write_text(json.dumps({**environment, "scaling": scaling}))
    page = Tags(report([run]))
    assert all(figure in page.text for figure in ("2 processes", "1,234", "1.91", "95%", "300.0 MiB", "1.3%")), (
        page.text
    )


def test_markdown_is_plain(tmp_path: Path) -> None:
    text = report([write_run(tmp_path / "one")], markdown=True)
    assert text.count("\n## ") == len(SECTIONS)
    outside = re.sub(r"^(`{3,})text\n.*?\n\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "\\<script\\>" in outside
    assert not re.search(r"(?<!\\)<script", outside)
    assert f"```text\n{HOSTILE}\n```" in text
    widths = {line.count(" | ") for line in outside.splitlines() if line.startswith("| one")}
    assert len(widths) <= 2


def test_broken_runs(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    with open(folder / "metrics.jsonl", "a") as file:
        file.write('{"step": 41, "lo')
    assert "line 41 of metrics.jsonl is torn" in report([folder])
    with RunFolder(str(folder)).lock():
        assert "still running: all figures are up to step 40" in report([folder])
    assert "still running" not in report([folder])
    for name in ("summary.json", "corpus.json", "ledger.json", "samples.txt", "environment.json"):
        (folder / name).unlink()
    bare = Tags(report([folder])).text
    assert "did not end by itself" in bare
    assert "of unknown" in bare
    assert " 0 B" not in bare
    whole = write_run(tmp_path / "whole")
    assert "measured roofs" in report([folder, whole])
    (whole / "tune.json").write_text("{}")
    (whole / "metrics.jsonl").write_text((whole / "metrics.jsonl").read_text() + "{}\n")
    text = report([whole])
    assert "tune.json is not as this version" in text
    assert "line 41 of metrics.jsonl is torn or lacks figures" in text
    (folder / "metrics.jsonl").write_text("")
    with pytest.raises(ReportError, match="no metrics yet"):
        report([folder])
    with pytest.raises(ReportError, match="no such run directory"):
        report([tmp_path / "none"])


def test_a_newer_version(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    environment = json.loads((folder / "environment.json").read_text())
    environment["versions"]["headrace"] = "99.1.0"
    (folder / "environment.json").write_text(json.dumps(environment))
    assert "written by headrace 99.1.0, newer than this" in report([folder])
    config = json.loads((folder / "config.json").read_text())
    config["model"]["from_the_future"] = 1
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ReportError, match=r"headrace 99\.1\.0.*Upgrade"):
        report([folder])


def test_a_real_run(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text(make_text(20_000))
    run = train(**settings(corpus, tmp_path / "run", **{"training.evaluate_every": 0}))
    text = Tags(report([run.folder])).text
    assert "documents split" in text
    assert "per epoch" in text
    assert "12 steps" in text
    assert "unknown" not in text.split("What limited it")[2].split("Tokenisation and chunking")[0]


def test_the_command(command: Command, tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run")
    code, out, _ = command("report", folder, "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["report"] == str(folder / "report.html")
    assert (folder / "report.html").read_text().startswith("<!doctype html>")
    code, _, _ = command("report", folder, "--markdown", "--out", tmp_path / "r.md")
    assert (tmp_path / "r.md").read_text().startswith("# headrace: run")
    code, _, err = command("report", tmp_path)
    assert code == 1
    assert "no metrics yet" in err
    assert "Traceback" not in err


def test_the_last_run_is_taken_where_none_is_named(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = command("report")
    assert code == 1
    assert "runs/last: no such run here. Name a run, or make one with: headrace train" in err
    write_run(tmp_path / "runs" / "one")
    (tmp_path / "runs" / "last").symlink_to("one")
    code, out, err = command("report")
    assert code == 0
    assert "using runs/one, the newest run" in err
    assert out.strip() == "runs/one/report.html"
    assert "headrace: one" in (tmp_path / "runs" / "one" / "report.html").read_text()
