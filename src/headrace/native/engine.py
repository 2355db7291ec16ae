"""Native steps of a network: tokens in, the loss out, gradients added to those of its parameters; or the loss alone."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from headrace.models.architecture import find_architecture
from headrace.models.candidates import Candidates
from headrace.models.config import ModelConfig
from headrace.models.network import Network
from headrace.native.library import Rows, Shape, find_library, wanted_instructions, why_missing

ROWS_AT_ONCE = 1024
"""Tokens that a thread computes at a time: fewer take less memory, more read and write the weights less often."""
MOST_OWN_BYTES = 32 << 20
"""Most bytes of gradients that threads have to themselves; beyond, they add to shared ones in turns."""
KINDS = ("gpt2", "qwen3")
"""Kinds of blocks that the library knows (`Architecture.native_kind`), by its number for them."""
# Names of the parameters in the order of src/network.h; of two names, a network has one.
NETWORK_TENSORS = ("embedding.weight", "positions.weight", "head", "norm.weight", "norm.bias")
LAYER_TENSORS = (
    "attention_norm.weight", "attention_norm.bias", "query_key_value.weight", "query_key_value.bias",
    "query_norm.weight", "key_norm.weight", "attention_out.weight", "attention_out.bias",
    "feed_forward_norm.weight", "feed_forward_norm.bias", "up.weight|gate_up.weight", "up.bias",
    "down.weight", "down.bias",
)  # fmt: skip


def why_not(config: ModelConfig) -> str:
    """Return why a network cannot be computed natively, in words for a person; empty if it can."""
    lacking = find_architecture(config.arch).why_not_native(config)
    return f"it does not know {lacking}" if lacking else why_missing()


def sequences_at_once(num_sequences: int, sequence_length: int, num_threads: int) -> int:
    """Return how many of a batch's sequences each thread computes at a time.

    >>> sequences_at_once(16, 256, num_threads=2), sequences_at_once(12, 64, num_threads=2)
    (4, 6)
    """
    return min(-(-num_sequences // num_threads), max(1, ROWS_AT_ONCE // sequence_length))


@dataclass(frozen=True)
class _Planned:
    """The calls that memory is planned for."""

    length: int
    sequences_at_once: int
    vocabulary: int

    def does_for(self, other: _Planned) -> bool:
        """Return whether the memory is enough for other calls, such as ones with fewer sequences."""
        return self == replace(other, sequences_at_once=max(self.sequences_at_once, other.sequences_at_once))


class NativeStep:
    """The computation of steps of one network, with all memory that they need for one shape of batches."""

    def __init__(self, network: Network, precision: str, num_threads: int) -> None:
        library = find_library()
        assert library is not None, "ask `why_not` first"
        self._library, self._network = library, network
        self._precision, self._num_threads = precision, num_threads
        self._tensors = _tensors_in_order(network)
        self._planned: _Planned | None = None
        self.forward_s = 0.0
        """Seconds that the forward passes of the last call took, in the first thread."""
        self._plan: Any = None
        self._free: Callable[[], Any] = lambda: None

    def __call__(
        self,
        inputs_BT: npt.NDArray[Any],
        targets_BT: npt.NDArray[Any],
        documents_BT: npt.NDArray[np.int32] | None,
        mask_BT: npt.NDArray[np.bool_] | None,
        scale: float,
        dropout: float = 0.0,
        keys_B: npt.NDArray[np.uint32] | None = None,
        candidates: Candidates | None = None,
    ) -> float:
        """Add the gradients of scale x the sum of losses to those of the parameters; return that loss.

        `dropout`: the share of numbers that is dropped by the keys of the sequences (models/dropout.py). `candidates`:
        the tokens that the loss compares; the library then computes a network that has no others.
        """
        num_sequences, length = inputs_BT.shape
        vocabulary = self._network.config.vocab_size if candidates is None else len(candidates)
        self._prepare(_Planned(length, sequences_at_once(num_sequences, length, self._num_threads), vocabulary))
        is_fresh = self._provide_gradients()
        tables: dict[Tensor, Tensor] = {}
        offsets = None
        if candidates is not None:
            inputs_BT, targets_BT = candidates.place(inputs_BT), candidates.place(targets_BT)
            tables, offsets = self._select_tables(candidates), candidates.offsets
        arrays = _arrays(inputs_BT, targets_BT, documents_BT, mask_BT, keys_B, offsets)
        rows = Rows(*_addresses(arrays), dropout, num_sequences)
        tensors = [None if tensor is None else tables.get(tensor, tensor) for tensor in self._tensors]
        gradients = [None if tensor is None else tensor.grad for tensor in tensors]
        forward_s = ctypes.c_double()
        loss: float = self._library.headrace_step(
            self._plan, _pointers(tensors), _pointers(gradients), rows, scale, is_fresh, ctypes.byref(forward_s)
        )
        self.forward_s = forward_s.value
        for table, selected in tables.items():
            assert candidates is not None and table.grad is not None and selected.grad is not None
            if is_fresh:
                table.grad.zero_()
            candidates.add_rows(table.grad, selected.grad)
        return loss

    def _select_tables(self, candidates: Candidates) -> dict[Tensor, Tensor]:
        """Return the candidates' rows of the parameters that have one for each token, with gradients of zero."""
        selected = {table: candidates.select(table.detach()) for table in self._network.token_tables}
        for rows in selected.values():
            rows.grad = torch.zeros_like(rows)
        return selected

    def loss(
        self,
        inputs_BT: npt.NDArray[Any],
        targets_BT: npt.NDArray[Any],
        documents_BT: npt.NDArray[np.int32] | None,
        mask_BT: npt.NDArray[np.bool_] | None,
    ) -> float:
        """Return the sum of the losses of some sequences; gradients stay as they are."""
        num_sequences, length = inputs_BT.shape
        wanted = _Planned(
            length, sequences_at_once(num_sequences, length, self._num_threads), self._network.config.vocab_size
        )
        if self._planned is None or not self._planned.does_for(wanted):
            self._prepare(wanted)
        arrays = _arrays(inputs_BT, targets_BT, documents_BT, mask_BT, None, None)
        rows = Rows(*_addresses(arrays), 0.0, num_sequences)
        total: float = self._library.headrace_loss(self._plan, _pointers(self._tensors), rows, 1.0)
        return total

    def rows_at_once(self, length: int) -> int:
        """Return how many sequences of this length all threads together compute at a time."""
        return self._num_threads * max(1, ROWS_AT_ONCE // length)

    def bytes_to_plan(self, num_sequences: int, length: int, candidates: Candidates | None = None) -> int:
        """Return the bytes that a call with this many sequences will allocate first; 0 if the memory is there."""
        config = self._network.config
        vocabulary = config.vocab_size if candidates is None else len(candidates)
        if self._planned == _Planned(length, sequences_at_once(num_sequences, length, self._num_threads), vocabulary):
            return 0
        return planned_bytes(config, num_sequences, length, self._precision, self._num_threads)

    def release(self) -> None:
        """Give the memory back; the next call plans it again."""
        self._planned = None
        self._free()

    def _prepare(self, wanted: _Planned) -> None:
        """Make the plan for this shape, unless the newest one is for it."""
        if self._planned == wanted:
            return
        self.release()
        shape = make_shape(self._network.config, wanted.length, self._precision)
        shape.vocabulary = wanted.vocabulary
        shape.num_layers = len(self._network.blocks)  # a rehearsal leaves some out
        frequencies = getattr(self._network, "frequencies", None)  # of rotary positions
        address = None if frequencies is None else frequencies.data_ptr()
        self._plan = self._library.headrace_plan(
            shape, address, self._num_threads, wanted.sequences_at_once, MOST_OWN_BYTES, wanted_instructions()
        )
        if not self._plan:
            raise MemoryError("not enough memory for native steps: choose training.engine=torch")
        self._planned = wanted
        self._free = weakref.finalize(self, self._library.headrace_free, self._plan)

    def _provide_gradients(self) -> bool:
        """Give parameters without a gradient one; return whether none had any, so that all may be overwritten."""
        parameters = [tensor for tensor in self._tensors if tensor is not None]
        is_fresh = all(parameter.grad is None for parameter in parameters)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.empty_like(parameter) if is_fresh else torch.zeros_like(parameter)
        return is_fresh


def _arrays(*given: npt.NDArray[Any] | None) -> list[npt.NDArray[Any] | None]:
    """Return the arrays of a batch in the number formats of the library."""
    dtypes = (np.int32, np.int32, np.int32, np.uint8, np.uint32, np.float32)
    return [
        None if array is None else np.ascontiguousarray(array, dtype)
        for array, dtype in zip(given, dtypes, strict=True)
    ]


def _addresses(arrays: list[npt.NDArray[Any] | None]) -> list[int | None]:
    return [None if array is None else array.ctypes.data for array in arrays]


def make_shape(config: ModelConfig, sequence_length: int, precision: str) -> Shape:
    """Return the shape of a network as the library takes it."""
    kind = find_architecture(config.arch).native_kind
    assert kind is not None
    return Shape(
        KINDS.index(kind), config.num_layers, config.d_model, config.heads, config.feed_forward, config.vocab_size,
        config.context, sequence_length, config.tie_embeddings, precision == "bfloat16",
    )  # fmt: skip


def planned_bytes(config: ModelConfig, num_sequences: int, sequence_length: int, precision: str, threads: int) -> int:
    """Return the bytes that native steps of a batch allocate beside weights and gradients."""
    library = find_library()
    assert library is not None
    at_once = sequences_at_once(num_sequences, sequence_length, threads)
    shape = make_shape(config, sequence_length, precision)
    planned: int = library.headrace_plan_bytes(shape, threads, at_once, MOST_OWN_BYTES)
    return planned


def _tensors_in_order(network: Network) -> list[Tensor | None]:
    """List the parameters as src/network.h orders them, None where this network has none."""
    named: dict[str, Tensor] = dict(network.named_parameters())
    named.setdefault("head", network.embedding.weight)
    names = list(NETWORK_TENSORS)
    for number in range(len(network.blocks)):
        names += ["|".join(f"blocks.{number}.{name}" for name in names.split("|")) for names in LAYER_TENSORS]
    return [next((named[name] for name in group.split("|") if name in named), None) for group in names]


def _pointers(tensors: list[Tensor | None]) -> ctypes.Array[ctypes.c_void_p]:
    for tensor in tensors:
        assert tensor is None or (tensor.is_contiguous() and tensor.dtype == torch.float32)
    return (ctypes.c_void_p * len(tensors))(*(None if tensor is None else tensor.data_ptr() for tensor in tensors))
