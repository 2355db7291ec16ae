"""Export: a trained model as a file that other programs run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from headrace.errors import UsageError
from headrace.files import write_atomically
from headrace.generation.sampling import Sampling
from headrace.interop.gguf import GGUF_TYPES, GgufFacts, write_gguf
from headrace.run.saved_model import TrainedModel, load_trained


@dataclass(frozen=True)
class Exported:
    """What an export has written."""

    name: str
    """What to call the model elsewhere."""
    model: Path
    """The GGUF file."""
    modelfile: Path
    """How Ollama is told to make a model of it."""
    num_bytes: int
    notice: str
    """What the other programs do in another way; empty if there is nothing to say."""


def export_gguf(model: str | Path, kind: str = "f32", out: Path | None = None) -> Exported:
    """Write a model (a run, a checkpoint, a folder or a hub name) as a GGUF file, and a Modelfile beside it.

    `out` is a folder, or the name of the file if it ends in .gguf; by default the folder `gguf` in the run directory,
    or here for a model of the hub.
    """
    if kind not in GGUF_TYPES:
        raise UsageError(f"--type {kind}: use one of {', '.join(GGUF_TYPES)}")
    trained = load_trained(model)
    folder = out or trained.folder / "gguf"
    path = folder if folder.suffix == ".gguf" else folder / f"{trained.name}-{kind}.gguf"
    facts = GgufFacts(trained.name, trained.num_tokens, trained.num_steps, metadata.version("headrace"))
    notice = write_gguf(path, trained.network, trained.tokenizer, kind, facts)
    modelfile = path.with_name("Modelfile")
    write_atomically(modelfile, _modelfile(path, trained).encode())
    return Exported(_ollama_name(trained.name), path, modelfile, path.stat().st_size, notice)


def _ollama_name(name: str) -> str:
    """Return a name that Ollama takes: at most 80 characters, no two dots in a row.

    >>> _ollama_name("Mine..2")
    'mine.2'
    """
    return re.sub(r"\.{2,}", ".", name.lower())[:80]


def _modelfile(path: Path, trained: TrainedModel) -> str:
    """Return a Modelfile: the prompt goes to the model as it is, and generating ends as `headrace generate` does."""
    return (
        f"FROM ./{path.name}\n"
        'TEMPLATE """{{ .Prompt }}"""\n'
        f"PARAMETER num_ctx {trained.network.config.context}\n"
        f"PARAMETER num_predict {Sampling.max_tokens}\n"
        f"PARAMETER temperature {Sampling.temperature}\n"
    )
