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
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.tokens.encoders import CHARACTER_PATTERN, Encoder, byte_vocabulary, is_character_table, make_encoder
from headrace.data.tokens.interruptible import run_interruptibly
from headrace.data.tokens.special_tokens import SpecialTokensInText, special_tokens, unknown_token
from headrace.data.tokens.tokenizer_json import (
    components,
    make_backend,
    parse_tokenizer,
    read_tokenizer_file,
    switch_off_lengths,
    text_losses,
)
from headrace.errors import TokenizerError, UsageError
from headrace.files import digest

END_OF_TEXT = "<|endoftext|>"
UNKNOWN = "<|unknown|>"
# Tried in this order on a tokenizer that somebody else made.
KNOWN_END_OF_TEXT = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|im_end|>", "[SEP]")
KNOWN_PADDING = ("<|pad|>", "<|padding|>", "<pad>", "[PAD]")
MINIMUM_BPE, MAXIMUM_BPE = 257, 1_000_000
DEFAULT_TOKENIZER = "bpe:4096"
"""The tokenizer of a corpus when none is given: the same for `prepare`, `Loader` and `train`, which share its cache."""
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
    special_tokens_in_text: SpecialTokensInText = "ordinary"
    notices: tuple[str, ...] = ()
    """What was switched off in the tokenizer.json, and what the tokenizer does to text that cannot be undone."""

    @cached_property
    def hash(self) -> str:
        """Identifies the tokens that this tokenizer makes of a text."""
        # The first version looked for special tokens in text, too: what it made must differ from what is made today.
        version = "tokenizer-1" if self.special_tokens_in_text == "special" else "tokenizer-2"
        return digest(version, self.json, str(self.end_of_text_id))

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a token on disk and in a batch: two bytes up to 65,536 tokens, else four."""
        return np.dtype("<u2") if self.vocab_size <= 1 << 16 else np.dtype("<u4")

    @cached_property
    def special_tokens(self) -> dict[str, int]:
        """The special tokens and the ids that they really get, which a file may state wrongly."""
        return {token: int(self._backend.token_to_id(token)) for token in special_tokens(self._data)}

    @property
    def special_ids_of_text(self) -> list[int]:
        """The ids that text gets only by spelling out a special token: all of them but that of unknown text."""
        unknown = unknown_token(self._data)
        return [index for token, index in self.special_tokens.items() if token != unknown]

    @cached_property
    def unbroken(self) -> list[bytes]:
        """What a text may not be cut inside of: tokens that are looked for in it, as special ones may not be."""
        are_special_found = self.special_tokens_in_text == "special"
        added = self._data.get("added_tokens") or ()
        return [token["content"].encode() for token in added if are_special_found or not token.get("special")]

    @property
    def padding(self) -> str:
        """The padding token, which other libraries need: the tokenizer's own, else end-of-text."""
        return next((token for token in KNOWN_PADDING if token in self.special_tokens), self.end_of_text)

    def encoder(self) -> Encoder:
        """Return a new encoder, for one thread."""
        return make_encoder(self.json, self.special_tokens_in_text)

    def encode(self, text: str) -> npt.NDArray[np.uint32]:
        """Return the ids of a short text, without end-of-text."""
        return self._encoder.encode([text.encode()])[0]

    def decode(self, ids: npt.NDArray[Any] | list[int]) -> str:
        """Return the text of some ids, end-of-text included."""
        return str(self._backend.decode([int(i) for i in ids], skip_special_tokens=False))

    def recycle(self) -> None:
        """Give back the memory that was kept to encode and decode the next text at once: some 30 MB for `bpe:16000`."""
        for name in ("_encoder", "_backend", "_data"):
            self.__dict__.pop(name, None)

    @cached_property
    def gives_text_back(self) -> bool:
        """Whether decoding gives back every text, byte for byte (but for characters that a `char` table lacks)."""
        if self._data.get("normalizer"):
            return False
        if is_character_table(self._data):
            return True
        parts = components(self._data.get("pre_tokenizer"), "pretokenizers")
        adds_spaces = any(part.get("add_prefix_space", True) for part in parts if part.get("type") == "ByteLevel")
        return "ByteLevel" in self._decoders and not adds_spaces and not text_losses(self._data)

    def byte_lengths(self) -> npt.NDArray[np.int64]:
        """Return how many bytes of text each id stands for inside a text; special tokens stand for none."""
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        vocabulary = self._backend.get_vocab(with_added_tokens=True)
        frame = self._decoded_bytes("a", "a")
        for token, index in vocabulary.items():
            if "ByteLevel" in self._decoders:  # every byte is spelled as one character
                lengths[index] = len(token)
            elif "ByteFallback" in self._decoders and re.fullmatch("<0x[0-9A-F]{2}>", token):
                lengths[index] = 1
            else:  # between two others, because decoders treat the first and the last token of a text in their own ways
                lengths[index] = self._decoded_bytes("a", token, "a") - frame
        for added in self._data.get("added_tokens") or ():
            if "ByteLevel" in self._decoders:  # added tokens are spelled as they are
                lengths[vocabulary[added["content"]]] = len(added["content"].encode())
        lengths[list(self.special_tokens.values())] = 0
        return lengths

    def _decoded_bytes(self, *tokens: str) -> int:
        decoder = self._backend.decoder
        return len((decoder.decode(list(tokens)) if decoder else " ".join(tokens)).encode())

    @cached_property
    def _decoders(self) -> list[str]:
        return [str(part.get("type")) for part in components(self._data.get("decoder"), "decoders")]

    def export_json(self) -> str:
        """Return a tokenizer.json that gives Hugging Face users the ids of training: nothing is put around a text."""
        return json.dumps({**self._data, "post_processor": None}, ensure_ascii=False)

    @cached_property
    def _encoder(self) -> Encoder:
        return self.encoder()

    @cached_property
    def _backend(self) -> Any:
        return make_backend(self.json)

    @cached_property
    def _data(self) -> dict[str, Any]:
        return parse_tokenizer(self.json)


def load_tokenizer(
    spec: str, sample: Callable[[], Iterator[bytes]], special_tokens_in_text: SpecialTokensInText = "ordinary"
) -> Tokenizer:
    """Make the tokenizer that a spec names; `sample` gives text to learn from, for those that learn."""
    return replace(_load(spec, sample), special_tokens_in_text=special_tokens_in_text)


def _load(spec: str, sample: Callable[[], Iterator[bytes]]) -> Tokenizer:
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
        return from_json(spec, read_tokenizer_file(path), str(path))
    if path.suffix == ".json" or spec.startswith((".", "/", "~")):
        raise TokenizerError(f"{path}: no such tokenizer file. A tokenizer is {SPEC_HELP}.")
    return _from_hub(spec)


def check_spec(spec: str) -> None:
    """Refuse what cannot be a tokenizer before any work is done."""
    if spec.startswith("bpe"):
        size = spec[4:].replace("_", "").replace(",", "")
        if not spec.startswith("bpe:") or not (size.isascii() and size.isdigit()):
            raise UsageError(f"tokenizer {spec!r}: write bpe:N with N the vocabulary size, such as bpe:16000")
        if len(size) > 18 or not MINIMUM_BPE <= int(size) <= MAXIMUM_BPE:
            raise UsageError(
                f"tokenizer {spec!r}: the vocabulary needs at least {MINIMUM_BPE} tokens (256 bytes and end-of-text)"
                f" and at most {MAXIMUM_BPE:,}"
            )
    elif not spec:
        raise UsageError(f"no tokenizer given: {SPEC_HELP}")


def from_json(spec: str, text: str, where: str) -> Tokenizer:
    """Make a tokenizer of the text of a tokenizer.json: never truncating or padding, and with an end-of-text token."""
    data = parse_tokenizer(text, where)
    backend = make_backend(text, where)
    notices = switch_off_lengths(backend)
    vocabulary = backend.get_vocab(with_added_tokens=True)
    found = next((token for token in KNOWN_END_OF_TEXT if token in vocabulary), END_OF_TEXT)
    if found not in special_tokens(data):
        owners = {index: token for token, index in vocabulary.items() if token != found}
        backend.add_special_tokens([found])
        vocabulary = backend.get_vocab(with_added_tokens=True)
        if vocabulary[found] in owners:  # the ids have a gap, and the library counts tokens
            raise TokenizerError(
                f"{where}: has no end-of-text token, and the id {vocabulary[found]} that it would get belongs to"
                f" {owners[vocabulary[found]]!r}. Add one to the file, such as {END_OF_TEXT}, with an id of its own."
            )
    if notices or found not in special_tokens(data):
        text = backend.to_str()
    said = tuple(f"{where}: {notice}" for notice in (*notices, *text_losses(data)))
    return Tokenizer(spec, text, max(vocabulary.values()) + 1, vocabulary[found], found, notices=said)


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

    backend = Backend(models.BPE(byte_vocabulary(), []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([END_OF_TEXT])
    return _finish(spec, backend)


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
            knock(constants.ENDPOINT)
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
    return from_json(name, read_tokenizer_file(Path(path)), path)


def knock(endpoint: str) -> None:
    """Fail at once where there is no network: the hub's own client would retry for half a minute first."""
    address = urllib.parse.urlsplit(endpoint)
    if address.hostname and not urllib.request.getproxies():
        port = address.port or (443 if address.scheme == "https" else 80)
        socket.create_connection((address.hostname, port), timeout=5).close()
