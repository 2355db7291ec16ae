"""Tokenizers: found, trained, saved as `tokenizer.json`, and identified by their content.

`load_tokenizer` understands `char`, `byte`, `bpe:N`, a path to a tokenizer.json (or its folder), and a hub name.
"""

from __future__ import annotations

import json
import re
import socket
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.encoders import CHARACTER_PATTERN, Encoder, make_encoder
from headrace.data.interruptible import run_interruptibly
from headrace.errors import TokenizerError, UsageError
from headrace.files import digest

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<|unknown|>"
# Tried in this order on a tokenizer that somebody else made.
KNOWN_END_OF_TEXT = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|im_end|>", "[SEP]")
MINIMUM_BPE = 257
SPEC_HELP = "char, byte, bpe:N (such as bpe:16000), a path to a tokenizer.json, or a hub name (such as gpt2)"


@dataclass(frozen=True)
class Tokenizer:
    """A tokenizer.json and what headrace needs to know of it."""

    spec: str
    """What the user asked for."""
    json: str
    vocab_size: int
    end_of_text_id: int
    end_of_text: str

    @cached_property
    def hash(self) -> str:
        return digest("tokenizer-1", self.json, str(self.end_of_text_id))

    @property
    def dtype(self) -> np.dtype[Any]:
        """What a token takes on disk and in a batch: two bytes up to 65,536 tokens, else four."""
        return np.dtype("<u2") if self.vocab_size <= 1 << 16 else np.dtype("<u4")

    def encoder(self) -> Encoder:
        """A new encoder, for one thread."""
        return make_encoder(self.json)

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """Ids of a short text, without end-of-text."""
        return self._encoder.encode([text.encode()])[0]

    def decode(self, ids: npt.NDArray[Any] | list[int]) -> str:
        """Text of some ids, end-of-text included."""
        return str(self._backend.decode([int(i) for i in ids], skip_special_tokens=False))

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """How many bytes of text each id stands for; special tokens stand for none."""
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        data = json.loads(self.json)
        is_byte_level = (data.get("decoder") or {}).get("type") == "ByteLevel"
        for token, index in self._backend.get_vocab(with_added_tokens=False).items():
            # Byte-level vocabularies spell every byte as one character.
            lengths[index] = len(token) if is_byte_level else len(token.encode())
        for added in data["added_tokens"]:
            lengths[added["id"]] = 0 if added["special"] else len(added["content"].encode())
        return lengths

    @cached_property
    def _encoder(self) -> Encoder:
        return self.encoder()

    @cached_property
    def _backend(self) -> Any:
        from tokenizers import Tokenizer as Backend

        return Backend.from_str(self.json)


def load_tokenizer(spec: str, sample: Callable[[], Iterator[bytes]]) -> Tokenizer:
    """Make the tokenizer that a spec names; `sample` gives text to learn from, for those that learn."""
    if spec == "char":
        return _character_tokenizer(spec, sample())
    if spec == "byte":
        return _byte_tokenizer(spec)
    if spec.startswith("bpe:"):
        return _train_bpe(spec, sample())
    path = Path(spec).expanduser()
    if path.is_dir():
        path = path / "tokenizer.json"
    if path.is_file():
        return from_json(spec, path.read_text(encoding="utf-8"), str(path))
    if path.suffix == ".json" or spec.startswith((".", "/", "~")):
        raise TokenizerError(f"{path}: no such tokenizer file. A tokenizer is {SPEC_HELP}.")
    return _from_hub(spec)


def check_spec(spec: str) -> None:
    """Refuse what cannot be a tokenizer before any work is done."""
    if spec.startswith("bpe"):
        size = spec[4:].replace("_", "").replace(",", "")
        if not spec.startswith("bpe:") or not size.isdigit():
            raise UsageError(f"tokenizer {spec!r}: write bpe:N with N the vocabulary size, such as bpe:16000")
        if int(size) < MINIMUM_BPE:
            raise UsageError(f"tokenizer {spec!r}: needs at least {MINIMUM_BPE} tokens (256 bytes and end-of-text)")
    elif not spec:
        raise UsageError(f"no tokenizer given: {SPEC_HELP}")


def from_json(spec: str, text: str, where: str) -> Tokenizer:
    """A tokenizer from the text of a tokenizer.json; end-of-text is added if it has none."""
    from tokenizers import Tokenizer as Backend

    try:
        backend = Backend.from_str(text)
    except Exception as problem:  # tokenizers raises bare Exception
        raise TokenizerError(f"{where}: not a Hugging Face tokenizer.json ({problem}).") from None
    vocabulary = backend.get_vocab(with_added_tokens=True)
    found = next((token for token in KNOWN_END_OF_TEXT if token in vocabulary), None)
    if found is None:
        backend.add_special_tokens([END_OF_TEXT])
        found, text = END_OF_TEXT, backend.to_str()
        vocabulary = backend.get_vocab(with_added_tokens=True)
    return Tokenizer(spec, text, max(vocabulary.values()) + 1, vocabulary[found], found)


def _finish(spec: str, backend: Any) -> Tokenizer:
    vocabulary = backend.get_vocab(with_added_tokens=True)
    return Tokenizer(spec, backend.to_str(), max(vocabulary.values()) + 1, vocabulary[END_OF_TEXT], END_OF_TEXT)


def _character_tokenizer(spec: str, sample: Iterator[bytes]) -> Tokenizer:
    from tokenizers import Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    seen: Counter[str] = Counter()
    for document in sample:
        seen.update(set(document.decode()))
    vocabulary = {token: index for index, token in enumerate([END_OF_TEXT, UNKNOWN, *sorted(seen)])}
    backend = Backend(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(CHARACTER_PATTERN), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([END_OF_TEXT, UNKNOWN])
    return _finish(spec, backend)


def _byte_tokenizer(spec: str) -> Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers

    backend = Backend(models.BPE(_byte_vocabulary(), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END_OF_TEXT])
    return _finish(spec, backend)


def _byte_vocabulary() -> dict[str, int]:
    """GPT-2's printable stand-in for each byte, numbered by the byte's value."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    stand_ins = {byte: chr(byte) for byte in printable}
    others = [byte for byte in range(256) if byte not in stand_ins]
    stand_ins |= {byte: chr(256 + place) for place, byte in enumerate(others)}
    return {stand_ins[byte]: byte for byte in range(256)}


def _train_bpe(spec: str, sample: Iterator[bytes]) -> Tokenizer:
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, pre_tokenizers, trainers

    check_spec(spec)
    backend = Backend(models.BPE())
    # GPT-2's pattern: gigatoken and llama.cpp know it.
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=int(spec[4:].replace("_", "").replace(",", "")),
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    documents = (document.decode() for document in sample)
    run_interruptibly(lambda: backend.train_from_iterator(documents, trainer))
    return _finish(spec, backend)


def _from_hub(name: str) -> Tokenizer:
    if not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name):
        raise TokenizerError(f"tokenizer {name!r} is neither a file nor a hub name. A tokenizer is {SPEC_HELP}.")
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        try:
            path = hf_hub_download(name, "tokenizer.json", local_files_only=True)
        except LocalEntryNotFoundError:
            _knock(constants.ENDPOINT)
            path = hf_hub_download(name, "tokenizer.json")
    except (LocalEntryNotFoundError, OSError, ValueError) as problem:
        status = getattr(getattr(problem, "response", None), "status_code", None)
        if isinstance(problem, HfHubHTTPError) and status in (401, 403, 404):
            reason = f"the hub answers {status}: no such public repository, or none with a tokenizer.json"
        else:
            reason = "it is not in the local hub cache and the hub cannot be reached"
        raise TokenizerError(
            f"tokenizer {name!r}: {reason}. Use a local tokenizer.json, or train one here with bpe:16000."
        ) from None
    return from_json(name, Path(path).read_text(encoding="utf-8"), path)


def _knock(endpoint: str) -> None:
    """Fail at once where there is no network: the hub's own client would retry for half a minute first."""
    address = urllib.parse.urlsplit(endpoint)
    if address.hostname and not urllib.request.getproxies():
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname, port), timeout=5).close()
