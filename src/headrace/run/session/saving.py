"""The saving of a run in its group: rank 0 copies the whole network and state into memory, and a thread writes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from headrace.activity import Activity, ignore
from headrace.data.tokens.tokenizers import Tokenizer
from headrace.distributed.replicas import Replica
from headrace.machine.facts import peak_memory_bytes
from headrace.machine.hardware import available_memory_bytes
from headrace.run.records import CheckpointState
from headrace.run.session.calibration import Calibration
from headrace.training.checkpoint import Checkpoints, Contents, small_files
from headrace.training.config import TrainingConfig
from headrace.training.optimizers.optimizer import Optimizer
from headrace.training.saving import Saver

LARGEST_SNAPSHOT = 0.5  # share of the free memory, where there is no budget

Tensors = Mapping[str, Tensor]


class RunSaving:
    """Saves a run; the files do not depend on how the network is shared out among processes.

    Where there is no memory for a copy of all that is saved, training waits until it is written.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        replica: Replica,
        optimizer: Optimizer,
        tokenizer: Tokenizer,
        describe: Callable[[], CheckpointState],
        training: TrainingConfig,
        is_validated: bool,
        calibration: Calibration,
        activity: Activity = ignore,
        average: Sequence[Tensor] | None = None,
    ) -> None:
        """`describe`: returns the state of the run, which is saved with its tensors.

        `average`: weights to save as the model, with those that are trained beside them; None: only those.
        """
        self._average, self._calibration = average, calibration
        self._saver = Saver(checkpoints)
        self._replica, self._optimizer, self._tokenizer = replica, optimizer, tokenizer
        self._describe, self._memory_budget, self._is_validated = describe, training.memory_budget, is_validated
        self._files: dict[str, bytes] = {}
        self._buffers: dict[str, Tensor] = {}
        self._must_wait = False
        self._activity = activity

    @property
    def written_s(self) -> float:
        """Seconds that writing the newest checkpoint took; 0: none was."""
        return self._saver.written_s

    def begin(self, is_last: bool) -> None:
        """Start to write a checkpoint of the present weights; no update follows if it is the last."""
        self._activity("saving")
        self._saver.wait()
        group = self._replica.group
        with group.exchanging("gathering the optimizer's state"):
            optimizer = {name: tensor for name, tensor in self._optimizer.tensors() if group.is_main}
        unaveraged: Tensors = {}
        trained = self._calibration.trained_weights
        if self._average is not None or trained is not None:
            with self._replica.whole(trained) as network:
                unaveraged = network.to_hugging_face()[1] if group.is_main else {}
        with self._replica.whole(self._average) as network:
            if group.is_main:
                kinds = {"weights": network.to_hugging_face()[1], "optimizer": optimizer, "unaveraged": unaveraged}
                self._files = self._files or small_files(network, self._tokenizer)
                self._begin(kinds, is_last)

    def seal(self, is_best: bool) -> None:
        """Complete the checkpoint that was begun with the present position."""
        if self._replica.group.is_main:
            state = self._describe()
            is_best = is_best or not self._is_validated  # without validation, the newest is the best there is
            self._saver.seal(state.position.step, state.as_json(), is_best)
            if self._must_wait:
                self._saver.wait()

    def check(self) -> None:
        """Raise the error of a save that has failed since."""
        self._saver.check()

    def wait(self) -> None:
        """Wait until the newest checkpoint is in its place."""
        self._saver.wait()

    def close(self) -> None:
        """Wait for a save under way."""
        self._saver.close()

    def _begin(self, kinds: dict[str, Tensors], is_last: bool) -> None:
        tensors = [tensor for kind in kinds.values() for tensor in kind.values()]
        is_copied = not is_last and self._has_memory_for(tensors)
        if is_copied:
            kinds = {kind: self._copied(tensors, kind) for kind, tensors in kinds.items()}
        self._must_wait = not is_last and not is_copied
        self._saver.begin(Contents(self._files, **kinds))

    def _has_memory_for(self, tensors: list[Tensor]) -> bool:
        """Return whether a copy of tensors stays within the budget, or without one within what is free."""
        needed = sum(tensor.nbytes for tensor in tensors) - sum(buffer.nbytes for buffer in self._buffers.values())
        if needed <= 0:
            return True
        if self._memory_budget:
            return peak_memory_bytes() + needed <= self._memory_budget
        return needed <= LARGEST_SNAPSHOT * available_memory_bytes()

    def _copied(self, tensors: Tensors, kind: str) -> Tensors:
        """Copy tensors into memory that is kept from save to save: fresh pages cost more than the copy."""
        for name, tensor in tensors.items():
            key = f"{kind}/{name}"
            if key not in self._buffers:
                self._buffers[key] = torch.empty_like(tensor, device="cpu")
            self._buffers[key].copy_(tensor)
        return {name: self._buffers[f"{kind}/{name}"] for name in tensors}
