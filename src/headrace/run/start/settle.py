"""A run that begins from a model: its configuration gets the model's shape and tokenizer, its network the weights.

    beginning = settle_model(config)          # None without model.init
    network = build(config.model)
    beginning.load_into(network)

A key that is given and says something else than the model is an error. A resumed run takes all of this from its
checkpoint, and the model that it began from is not read again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.data.tokens.extending import add_tokens, canonical, first_difference
from headrace.data.tokens.tokenizer_json import read_tokenizer_file
from headrace.data.tokens.tokenizers import Tokenizer, from_json, load_tokenizer
from headrace.errors import CheckpointError, UsageError
from headrace.models.architecture import find_architecture
from headrace.models.config import ModelConfig
from headrace.models.network import Network
from headrace.run.config import Config
from headrace.run.corpus import given_cache
from headrace.run.records import CheckpointState, StartRecord
from headrace.run.start.budget import fill_in, fill_in_as_before
from headrace.run.start.find import TOKENIZER, FoundModel, check_vocabulary, find_model

CHOSEN = {
    "num_heads": "heads", "num_kv_heads": "kv_heads", "head_dim": "head_width", "d_ff": "feed_forward",
    "norm_epsilon": "epsilon",
}  # fmt: skip
"""Keys of which 0 leaves the choice open, and the properties that hold what is chosen."""
NOT_SHAPE = ("init", "new_tokens", "vocab_size", "context")
CHANGED_DEFAULTS = {"num_heads", "rope_theta"}
"""Keys whose defaults were others in earlier versions: a run that was begun with those goes on with them."""


@dataclass(frozen=True)
class Beginning:
    """The model that a run begins from, and what becomes of its vocabulary."""

    found: FoundModel
    tokenizer: Tokenizer
    pieces: Mapping[int, Sequence[int]]
    """Ids of the tokens that are new, and the ids that their text had before."""
    notices: tuple[str, ...]

    def check(self) -> None:
        """Refuse weights that cannot be those of the shape, before memory is taken for it; downloads them."""
        self.found.model.check_size()

    def load_into(self, network: Network) -> None:
        """Copy the weights of the model into the network of the run."""
        self.found.model.load_into(network, self.pieces)

    def record(self) -> StartRecord:
        """Return what a run says of the model that it began from."""
        saved = self.found.saved
        return StartRecord(
            model=self.found.given,
            kind=self.found.kind,
            revision=self.found.model.files.revision,
            steps=saved.position.step if saved else None,
            tokens=saved.position.tokens if saved else None,
            new_tokens=len(self.pieces),
        )


def settle_model(config: Config) -> Beginning | None:
    """Set the shape, the vocabulary and the tokenizer of a configuration by the model that it begins from.

    Where it begins from random weights, what is open is set by what the time limit is enough for, and None returned.
    Reads the model's config.json and tokenizer; weights come later.
    """
    if not config.model.init:
        fill_in(config)
        return None
    found = find_model(config.model.init)
    tokenizer, pieces = _settle_tokenizer(config, found)
    notices = list(tokenizer.notices)
    _settle_shape(config, found.model.config, tokenizer, notices)
    if config.data.tokenizer == "":
        config.data.tokenizer = config.model.init
    return Beginning(found, tokenizer, pieces, tuple(notices))


def settled(config: Config) -> Config:
    """Return a copy of a configuration with the shape of the model that it begins from, or that is chosen for it."""
    copy = config.model_copy(deep=True)
    settle_model(copy)
    return copy


def resume_model(config: Config, saved: CheckpointState, checkpoint: Path) -> Tokenizer | None:
    """Set what a configuration leaves open as the run has it that began from a model; return the run's tokenizer.

    None where the run began from random weights.
    """
    before = saved.config.model
    if not before.init:
        fill_in_as_before(config, saved.config)
        for name in CHANGED_DEFAULTS:
            is_open = name not in config.model.model_fields_set or getattr(config.model, name) == 0
            if is_open and config.model.d_model == before.d_model:  # another width is refused later
                setattr(config.model, name, getattr(before, name))
        return None
    given = {name: getattr(config.model, name) for name in config.model.model_fields_set}
    is_open = {name for name, value in given.items() if value == 0 and not isinstance(value, bool)}
    kept = {name: value for name, value in given.items() if name not in is_open}
    config.model = ModelConfig.model_validate({**before.model_dump(), **kept})
    config.data.tokenizer = config.data.tokenizer or saved.config.data.tokenizer
    file = checkpoint / TOKENIZER
    tokenizer = from_json(config.data.tokenizer, read_tokenizer_file(file), str(file))
    return replace(tokenizer, special_tokens_in_text=config.data.special_tokens_in_text)


# The shape


def _settle_shape(config: Config, own: ModelConfig, tokenizer: Tokenizer, notices: list[str]) -> None:
    """Replace the `model` section by the model's shape; refuse what was given and differs from it."""
    given = config.model
    name = given.init
    for key in ModelConfig.model_fields.keys() - NOT_SHAPE:
        mine, theirs = getattr(given, key), getattr(own, CHOSEN.get(key, key))
        if key in given.model_fields_set and mine != theirs and not (key in CHOSEN and mine == 0):
            raise UsageError(
                f"model.{key}={mine}: contradicts model.init={name}, which has {theirs}. Leave model.{key} out."
            )
    context = given.context or own.context
    if context != own.context:
        if find_architecture(own.arch).is_context_fixed:
            raise UsageError(
                f"model.context={context}: contradicts model.init={name}, which has learned {own.context} positions."
                " Leave model.context out."
            )
        if context > own.context:
            notices.append(f"{name} was trained with a context of {own.context:,}, and this run has {context:,}")
    needed = max(own.vocab_size, tokenizer.vocab_size)
    if given.vocab_size and given.vocab_size < needed:
        raise UsageError(
            f"model.vocab_size={given.vocab_size}: contradicts model.init={name}, which needs {needed}. Leave"
            " model.vocab_size out."
        )
    changes = {
        "init": name, "new_tokens": given.new_tokens, "context": context, "vocab_size": max(given.vocab_size, needed)
    }  # fmt: skip
    config.model = ModelConfig.model_validate({**own.model_dump(), **changes})


# The tokenizer


def _settle_tokenizer(config: Config, found: FoundModel) -> tuple[Tokenizer, dict[int, list[int]]]:
    """Return the tokenizer of the run, and its new tokens; refuse one that does not go with the model."""
    own, given = found.tokenizer(), _given_tokenizer(config, found)
    tokenizer = given or own
    if tokenizer is None:
        raise CheckpointError(
            f"{found.given}: has no {TOKENIZER}. Give data.tokenizer the {TOKENIZER} that the model was trained with,"
            ' or write one beside it: python -c "from transformers import AutoTokenizer as T;'
            f" T.from_pretrained('{found.given}').save_pretrained('{found.given}')\""
        )
    if given is not None and own is not None and (difference := first_difference(given, own)):
        raise UsageError(
            f"data.tokenizer={given.spec}: gives other ids than the tokenizer of model.init={found.given}"
            f" ({difference}). Leave data.tokenizer out."
        )
    text = found.read_tokenizer_text() if given is None else given.json
    known = check_vocabulary(found, text, "" if given is None else f"data.tokenizer={given.spec}")
    pieces: dict[int, list[int]] = {}
    if tokenizer.end_of_text_id not in known:  # it had no token that ends a text, and got one
        pieces[tokenizer.end_of_text_id] = []
    tokenizer, added = add_tokens(tokenizer, config.model.new_tokens)
    if added and given_cache(config) is not None:
        raise UsageError("model.new_tokens: the token cache was made without them. Name the text instead of its cache.")
    return replace(tokenizer, special_tokens_in_text=config.data.special_tokens_in_text), {**pieces, **added}


def _given_tokenizer(config: Config, found: FoundModel) -> Tokenizer | None:
    """Return the tokenizer that the configuration names, by itself or by a token cache; None: the model's own."""
    cache = given_cache(config)
    if cache is not None:
        return cache.tokenizer
    spec = config.data.tokenizer
    trained_with = found.saved.config.data.tokenizer if found.saved else ""
    if spec in ("", config.model.init, trained_with):
        return None
    if spec == "char" or spec.startswith("bpe:"):
        raise UsageError(
            f"data.tokenizer={spec}: would be learned anew, and model.init={found.given} has learned its own tokens."
            " Leave data.tokenizer out."
        )
    return canonical(load_tokenizer(spec, lambda: iter(())))
