"""JAX: batches as committed, sharded global arrays.

    mesh = jax.sharding.Mesh(jax.devices(), ("data",))
    for batch in jax_batches(loader, mesh):
        params, loss = train_step(params, batch["inputs"], batch["targets"])

A whole training script is in examples/train_jax.py.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from headrace.data.batch import Batch
from headrace.data.loader import Loader
from headrace.errors import UsageError
from headrace.interop.ahead import Ahead
from headrace.interop.extras import require


def jax_batches(loader: Loader, mesh: Any = None, spec: Any = None, prefetch_batches: int = 2) -> Ahead[dict[str, Any]]:
    """Return endless batches as `jax.Array`s, in the loader's order and with its exact resume.

    Each is a dict of int32 `inputs` and `targets`, and where the loader has them `mask` and `documents`, of the global
    shape (batch_size, T). `mesh` defaults to all devices on one axis "data"; `spec` (a `PartitionSpec`) defaults to
    rows over the first axis of the mesh. With several processes each has a loader with its rank and the world size,
    and puts its own rows where the mesh wants them.
    """
    jax = require("jax", "jax")
    mesh = mesh if mesh is not None else jax.sharding.Mesh(jax.devices(), ("data",))
    spec = spec if spec is not None else jax.sharding.PartitionSpec(mesh.axis_names[0])
    shape = (loader.batch_size, loader.sequence_length)
    _check_divisible(mesh, spec, shape)
    sharding = jax.sharding.NamedSharding(mesh, spec)
    rows = loader.batch_size // loader.world_size
    first = loader.rank * rows
    _check_rows(sharding, shape, first, first + rows, loader)

    def place(array: npt.NDArray[Any]) -> Any:
        def shard(index: tuple[slice, ...]) -> npt.NDArray[Any]:
            start, stop, _ = index[0].indices(shape[0])
            return array[start - first : stop - first, index[1]]

        return jax.make_array_from_callback(shape, sharding, shard)

    def convert(batch: Batch) -> dict[str, Any]:
        arrays: dict[str, npt.NDArray[Any]] = {
            "inputs": batch.inputs.astype(np.int32),
            "targets": batch.targets.astype(np.int32),
        }
        if batch.mask is not None:
            arrays["mask"] = batch.mask
        if batch.documents is not None:
            arrays["documents"] = batch.documents
        return {name: place(array) for name, array in arrays.items()}

    return Ahead(loader, convert, prefetch_batches)


def _check_divisible(mesh: Any, spec: Any, shape: tuple[int, int]) -> None:
    if len(spec) > 2:
        raise UsageError(f"spec {spec}: a batch has two dimensions, rows and positions")
    for name, size, axes in zip(("batch_size", "sequence_length"), shape, (*spec, None, None), strict=False):
        names = (axes,) if isinstance(axes, str) else axes or ()
        missing = [axis for axis in names if axis not in mesh.shape]
        if missing:
            raise UsageError(f"spec {spec}: the mesh has no axis {missing[0]!r}; its axes are {list(mesh.axis_names)}")
        parts = int(np.prod([mesh.shape[axis] for axis in names]))
        if size % parts:
            down = size - size % parts
            near = f"{down} or {down + parts}" if down else str(parts)
            raise UsageError(
                f"{name} {size} does not divide among the {parts} devices of mesh axis {', '.join(names)}; use {near}"
            )


def _check_rows(sharding: Any, shape: tuple[int, int], first: int, stop: int, loader: Loader) -> None:
    """Check that the devices of this process need only rows that its loader makes."""
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        low, high, _ = index[0].indices(shape[0])
        if low < first or high > stop:
            raise UsageError(
                f"{device} needs rows {low} to {high - 1} of the batch, but the loader of rank {loader.rank} of"
                f" {loader.world_size} makes rows {first} to {stop - 1}. Give the loader rank=jax.process_index() and"
                " world_size=jax.process_count(), and keep each process's devices together in the mesh."
            )
