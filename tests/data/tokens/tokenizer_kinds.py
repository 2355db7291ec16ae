"""Tokenizers of every kind that people bring along, learned from a little text: what headrace must treat alike."""

from __future__ import annotations

import functools
import json
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from headrace.data.tokens.tokenizers import Tokenizer, from_json, load_tokenizer
from tests.conftest import make_text

TEXT = make_text(40_000)


def _template(backend: Backend, single: str, *tokens: str) -> None:
    special = [(token, backend.token_to_id(token)) for token in tokens]
    backend.post_processor = processors.TemplateProcessing(single=single, pair="$A $B", special_tokens=special)


def _gpt2() -> Backend:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<|endoftext|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=special, initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([TEXT], trainer)
    return backend


def _llama() -> Backend:
    """SentencePiece BPE with byte fallback, as Llama 2's tokenizer.json has it."""
    backend = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=600, special_tokens=special, show_progress=False)
    )
    data = json.loads(backend.to_str())
    data["added_tokens"] = data["added_tokens"][:3]
    backend = Backend.from_str(json.dumps({**data, "pre_tokenizer": None}))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    _template(backend, "<s> $A", "<s>")
    return backend


def _unigram() -> Backend:
    """SentencePiece Unigram, as T5's tokenizer.json has it: special tokens are pieces of the model."""
    backend = Backend(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    backend.train_from_iterator(
        [TEXT],
        trainers.UnigramTrainer(vocab_size=500, special_tokens=special, unk_token="<unk>", show_progress=False),
    )
    _template(backend, "$A </s>", "</s>")
    return backend


def _word_piece(pre_tokenizer: Any, lowercase: bool) -> Backend:
    """BERT's: [SEP] is a word of the vocabulary."""
    backend = Backend(models.WordPiece(unk_token="[UNK]"))
    if lowercase:
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizer
    backend.decoder = decoders.WordPiece()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    backend.train_from_iterator(
        [TEXT], trainers.WordPieceTrainer(vocab_size=500, special_tokens=special, show_progress=False)
    )
    _template(backend, "[CLS] $A [SEP]", "[CLS]", "[SEP]")
    return backend


BUILD = {
    "gpt2": _gpt2,
    "llama": _llama,
    "unigram": _unigram,
    "bert": lambda: _word_piece(pre_tokenizers.BertPreTokenizer(), lowercase=True),
    "words": lambda: _word_piece(pre_tokenizers.WhitespaceSplit(), lowercase=False),
}
KINDS = ["char", "byte", "bpe:400", *BUILD]


@functools.cache
def kind_json(kind: str) -> str:
    """The tokenizer.json of a kind; training some of them is not deterministic, hence the cache."""
    return str(BUILD[kind]().to_str())


@functools.cache
def tokenizer_of_kind(kind: str) -> Tokenizer:
    if kind not in BUILD:
        return load_tokenizer(kind, lambda: iter([TEXT.encode()]))
    return from_json(kind, kind_json(kind), kind)
