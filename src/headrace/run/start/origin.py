"""Where the weights of a run come from: a model that it begins from, its own checkpoint, or chance."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from headrace.activity import Activity
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.distributed.group import Group
from headrace.machine.device import best_device
from headrace.models.network import Network, build
from headrace.run.config import Config
from headrace.run.records import CheckpointState, StartRecord
from headrace.run.start.budget import fill_in
from headrace.run.start.settle import Beginning, resume_model, settle_model


@dataclass(frozen=True)
class Origin:
    """The origin of a run's weights, and what follows from it."""

    beginning: Beginning | None = None
    """The model that the run begins from now; None for random weights, and for a run that is resumed."""
    tokenizer: Tokenizer | None = None
    """The tokenizer that goes with the weights; None: the one that the configuration names."""
    record: StartRecord | None = None
    """What the run says of the model that it began from, now or before it was resumed; None: random weights."""
    notices: tuple[str, ...] = ()
    """What to tell the user."""

    def build_network(self, config: Config) -> Network:
        """Return the network of the run: with the weights of the model that it begins from, else random ones."""
        if self.beginning is not None:
            self.beginning.check()
        network = build(config.model, config.training.seed).to(best_device())
        if self.beginning is not None:
            self.beginning.load_into(network)
        return network


def find_origin(
    config: Config, group: Group, saved: CheckpointState | None, resume_from: Path | None, activity: Activity
) -> Origin:
    """Set the shape of a configuration: by the model that it begins from, its time limit, or its checkpoint."""
    if saved is not None and resume_from is not None:
        return Origin(tokenizer=resume_model(config, saved, resume_from), record=saved.continues_from)
    if not config.model.init:
        chosen = fill_in(config, group, activity)
        config.model.num_heads = config.model.heads  # a version with another default shall build the same network
        return Origin(notices=(chosen,) if chosen else ())
    activity(f"reading the model {config.model.init}")
    beginning = settle_model(config) if group.is_local_main else None  # downloads it, where it comes from the hub
    group.wait_for_all("waiting for each machine to read the model")
    beginning = beginning or settle_model(config)
    assert beginning is not None
    notices = (f"continuing from {config.model.init}", *beginning.notices)
    return Origin(beginning, beginning.tokenizer, beginning.record(), notices)
