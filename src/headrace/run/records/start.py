"""The model that a run began from, where it did not begin from random weights."""

from __future__ import annotations

from headrace.run.records.record import Figure, Record


class StartRecord(Record):
    """Where the first weights of a run came from."""

    model: str = ""
    """The model as it was named: a run, a folder, or a name of the hub."""
    kind: str = ""
    """run, folder or hub."""
    revision: str = ""
    """Commit of a repository of the hub."""
    steps: int | None = None
    """Updates that a run of headrace had done."""
    tokens: int | None = None
    """Tokens that a run of headrace had trained on."""
    new_tokens: int = 0
    """Tokens that were added to the vocabulary."""
    validation_loss: Figure = None
    """Loss on the validation sample before the first step, in nats per token."""

    @property
    def name(self) -> str:
        """The model as others may read it: without the folders that it lies in."""
        return self.model if self.kind == "hub" else self.model.rstrip("/").rpartition("/")[2]
