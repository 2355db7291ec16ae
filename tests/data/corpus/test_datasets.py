"""Hugging Face datasets, by the real package: objects, folders of save_to_disk, and their Arrow files."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pytest

import headrace as hr
from headrace.data.corpus.segments import divide_corpus
from headrace.data.corpus.sources import as_sources
from headrace.run.config import Layers
from headrace.run.corpus import training_sources
from tests.conftest import make_text
from tests.data.selection.test_duplicates import texts

datasets = pytest.importorskip("datasets")
datasets.disable_progress_bars()

Command = Callable[..., tuple[int, str, str]]
TEXTS = [make_text(150, seed=number) for number in range(200)]


@pytest.fixture
def dataset() -> Any:
    return datasets.Dataset.from_dict({"text": TEXTS, "number": list(range(len(TEXTS)))})


@pytest.fixture
def saved(dataset: Any, tmp_path: Path) -> Path:
    dataset.save_to_disk(tmp_path / "saved", num_shards=3)
    return tmp_path / "saved"


def transformations(dataset: Any) -> dict[str, tuple[Any, list[str]]]:
    """Datasets made from one, with the texts that `datasets` itself says they have."""
    made = {
        "as it is": dataset,
        "shuffled": dataset.shuffle(seed=1),
        "slice": dataset.select(range(20, 90)),
        "some": dataset.select([5, 3, 150]),
        "filtered": dataset.filter(lambda row: row["number"] % 3 == 0, load_from_cache_file=False),
        "twice": datasets.concatenate_datasets([dataset, dataset.shuffle(seed=2)]),
        "renamed": dataset.rename_column("number", "other"),
        "with nothing": datasets.Dataset.from_dict({"text": ["a", None, "", "b"]}),
    }
    return {name: (one, [text for text in one["text"] if text]) for name, one in made.items()}


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("is_mapped", [False, True])
def test_every_dataset_gives_its_rows_in_order(dataset: Any, saved: Path, tmp_path: Path, is_mapped: bool) -> None:
    for name, (one, expected) in transformations(datasets.load_from_disk(saved) if is_mapped else dataset).items():
        cache = hr.prepare(one, "byte", tmp_path / "caches" / name, num_workers=2)
        assert texts(cache) == expected, name
    assert cache.noticed["empty_documents"] == 2


@pytest.mark.usefixtures("small_scale")
def test_a_loader_takes_a_dataset(saved: Path, tmp_path: Path) -> None:
    mapped = datasets.load_from_disk(saved)
    options = {"batch_size": 4, "sequence_length": 32, "tokenizer": "byte"}
    with (
        hr.Loader(mapped, cache_dir=tmp_path / "a", **options) as one,
        hr.Loader(datasets.load_from_disk(saved), cache_dir=tmp_path / "b", num_workers=1, **options) as other,
    ):
        for _ in range(30):
            assert np.array_equal(next(one).inputs, next(other).inputs)
        assert one.cache.sources[0].label.startswith("dataset:")
    with hr.Loader(
        [mapped, mapped.select(range(10))], weights=[0.5, 0.5], cache_dir=tmp_path / "c", **options
    ) as mixed:
        assert len(mixed.cache.sources) == 2
        next(mixed)


@pytest.mark.usefixtures("small_scale")
def test_the_second_start_reads_nothing_and_a_changed_dataset_is_noticed(saved: Path, tmp_path: Path) -> None:
    first = hr.prepare(datasets.load_from_disk(saved), "byte")
    mapped = datasets.load_from_disk(saved)
    again = []
    hr.prepare(mapped, "byte", on_progress=again.append)
    assert again[-1].tokenised_bytes == 0
    changed = mapped.map(lambda row: {"text": row["text"].upper()}, load_from_cache_file=False)
    other = hr.prepare(changed, "byte")
    assert other.path != first.path
    assert texts(other) == [text.upper() for text in TEXTS]


def test_a_table_is_mapped_and_not_copied(tmp_path: Path) -> None:
    rows = [make_text(2000, seed=number) for number in range(2000)]
    datasets.Dataset.from_dict({"text": rows}).save_to_disk(tmp_path / "saved")
    gc.collect()
    before = pa.total_allocated_bytes()
    mapped = datasets.load_from_disk(tmp_path / "saved")
    allocated = []
    hr.prepare(mapped, "byte", tmp_path / "cache", on_progress=lambda _: allocated.append(pa.total_allocated_bytes()))
    hr.prepare(
        tmp_path / "saved",
        "byte",
        tmp_path / "other",
        on_progress=lambda _: allocated.append(pa.total_allocated_bytes()),
    )
    assert max(allocated) - before < 1 << 20  # of 4 MB


def test_splits_of_a_dictionary(dataset: Any, tmp_path: Path) -> None:
    both = datasets.DatasetDict(train=dataset, test=dataset.select(range(5)))
    assert hr.prepare(both, "byte", tmp_path / "a").num_documents == len(TEXTS)
    only = datasets.DatasetDict(everything=dataset)
    assert hr.prepare(only, "byte", tmp_path / "b").num_documents == len(TEXTS)
    neither = datasets.DatasetDict(one=dataset, two=dataset)
    with pytest.raises(hr.HeadraceError, match=r"no split 'train' \(it has: one, two\).*dataset\['one'\]"):
        hr.prepare(neither, "byte", tmp_path / "c")


def test_what_is_not_a_table_is_refused(dataset: Any) -> None:
    with pytest.raises(hr.HeadraceError, match=r"IterableDataset .* without streaming"):
        hr.prepare(dataset.to_iterable_dataset(), "byte")
    with pytest.raises(hr.HeadraceError, match=r"no column 'text' \(it has: body, number\).*text_field=NAME"):
        hr.prepare(dataset.rename_column("text", "body"), "byte")
    with pytest.raises(hr.HeadraceError, match="column 'number' holds int64, not text"):
        hr.prepare(hr.Source(path=dataset, text_field="number"), "byte")
    with pytest.raises(hr.HeadraceError, match="Give the dataset itself"):
        hr.prepare("dataset:0123456789abcdef", "byte")
    with pytest.raises(hr.HeadraceError, match="no text"):
        hr.prepare(datasets.Dataset.from_dict({"text": ["", None]}), "byte")


def test_another_column(dataset: Any, tmp_path: Path) -> None:
    renamed = dataset.rename_column("text", "body")
    assert texts(hr.prepare(hr.Source(path=renamed, text_field="body"), "byte", tmp_path / "a")) == TEXTS
    assert texts(hr.prepare({"path": renamed, "text_field": "body"}, "byte", tmp_path / "b")) == TEXTS


@pytest.mark.parametrize("harm", ["remove", "change"])
def test_a_vanished_or_changed_arrow_file_is_named(saved: Path, tmp_path: Path, harm: str) -> None:
    mapped = datasets.load_from_disk(saved)
    source = hr.Source(path=mapped)
    file = saved / "data-00001-of-00003.arrow"
    if harm == "remove":
        file.unlink()
    else:
        os.utime(file, (1, 1))
    with pytest.raises(hr.HeadraceError, match=r"data-00001-of-00003\.arrow: (was removed|changed).*Load the dataset"):
        hr.prepare(source, "byte", tmp_path / "cache")


@pytest.mark.usefixtures("small_scale")
def test_a_saved_folder_is_its_arrow_files(saved: Path, tmp_path: Path) -> None:
    cache = hr.prepare(saved, "byte", tmp_path / "cache", num_workers=3)
    assert texts(cache) == TEXTS
    assert len(cache.segments) == 3
    assert cache.skipped == {}
    (saved / "data-00002-of-00003.arrow").unlink()
    with pytest.raises(hr.HeadraceError, match=r"data-00002-of-00003\.arrow: the dataset lists this file"):
        hr.prepare(saved, "byte", tmp_path / "cache")


def test_a_folder_that_lists_files_elsewhere_is_refused(saved: Path) -> None:
    state = (saved / "state.json").read_text()
    (saved / "state.json").write_text(state.replace("data-00000-of-00003.arrow", "../../secret.arrow"))
    with pytest.raises(hr.HeadraceError, match="not a file of this folder"):
        divide_corpus(as_sources(saved))


def test_datasets_inside_other_folders(dataset: Any, tmp_path: Path) -> None:
    dataset.save_to_disk(tmp_path / "corpus" / "one")
    (tmp_path / "corpus" / "a.txt").write_text("text beside it")
    cache = hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache")
    assert texts(cache) == ["text beside it", *TEXTS]
    assert cache.skipped == {"description(s) of a dataset": 2}
    datasets.DatasetDict(train=dataset, test=dataset).save_to_disk(tmp_path / "corpus" / "two")
    with pytest.raises(hr.HeadraceError, match="several splits, inside another folder"):
        hr.prepare(tmp_path / "corpus", "byte", tmp_path / "cache")


def test_a_run_validates_on_the_datasets_own_split(dataset: Any, tmp_path: Path, command: Command) -> None:
    held_out = datasets.Dataset.from_dict({"text": [make_text(3000, seed=99)]})
    folder = tmp_path / "splits"
    datasets.DatasetDict(train=dataset, validation=held_out, test=dataset).save_to_disk(folder)
    layers = Layers()
    layers.add({"data.sources": [str(folder)]}, "test")
    config = layers.build()
    assert [source.path for source in training_sources(config)] == [str(folder)]
    assert config.data.validation_sources == [str(folder / "validation")]
    layers.add({"data.validation_fraction": 0.1}, "test")
    config = layers.build()
    training_sources(config)
    assert config.data.validation_sources == []
    code, out, err = command(
        "train", str(folder), "--out", str(tmp_path / "run"), "model.d_model=32", "model.num_layers=1",
        "model.num_heads=2", "training.max_steps=2", "training.max_length=32", "training.batch_size=2",
        "data.tokenizer=byte", "--force",
    )  # fmt: skip
    assert code == 0, err
    assert "the dataset's own split" in out + err


def test_an_only_split_is_trained_on_and_not_validated_on_too(dataset: Any, tmp_path: Path) -> None:
    folder = tmp_path / "splits"
    datasets.DatasetDict(validation=dataset).save_to_disk(folder)
    layers = Layers()
    layers.add({"data.sources": [str(folder)]}, "test")
    config = layers.build()
    assert [source.path for source in training_sources(config)] == [str(folder)]
    assert config.data.validation_sources == []
    assert hr.prepare(folder, "byte", tmp_path / "cache").num_documents == len(TEXTS)


@pytest.mark.usefixtures("small_scale")
@pytest.mark.parametrize("layout", ["stream", "file", "compressed"])
def test_arrow_files_of_any_layout(tmp_path: Path, layout: str) -> None:
    table = pa.table({"text": TEXTS, "number": list(range(len(TEXTS)))})
    path = tmp_path / "a.arrow"
    if layout == "stream":
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table, max_chunksize=16)
    else:
        pyarrow.feather.write_feather(
            table, path, chunksize=16, compression="zstd" if layout == "compressed" else "uncompressed"
        )
    cache = hr.prepare(path, "byte", tmp_path / "cache", num_workers=2)
    assert texts(cache) == TEXTS
    assert len(cache.segments) > 3


def test_a_compressed_bomb_is_refused_unread(tmp_path: Path) -> None:
    table = pa.table({"text": ["a" * (100 << 20)]})
    pyarrow.feather.write_feather(table, tmp_path / "a.arrow", compression="zstd")
    del table
    with pytest.raises(hr.HeadraceError, match=r"compressed record batch of 100 MiB"):
        hr.prepare(tmp_path / "a.arrow", "byte", tmp_path / "cache")


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.97, "no mark"])
def test_truncated_arrow_files_are_refused(saved: Path, tmp_path: Path, share: Any) -> None:
    file = saved / "data-00000-of-00003.arrow"
    data = file.read_bytes()
    file.write_bytes(data[:-8] if share == "no mark" else data[: max(int(share * len(data)), 10)])
    with pytest.raises(hr.HeadraceError, match=r"data-00000-of-00003\.arrow: (damaged or )?truncated Arrow file"):
        hr.prepare(saved, "byte", tmp_path / "cache")


def test_bytes_of_any_kind_are_no_arrow_file(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number in range(30):
        (tmp_path / f"{number}.arrow").write_bytes(rng.bytes(int(rng.integers(1, 400))))
        with pytest.raises(hr.HeadraceError, match="Arrow file"):
            hr.prepare(tmp_path / f"{number}.arrow", "byte", tmp_path / "cache")
