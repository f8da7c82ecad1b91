"""Check lengths and resets of a call's sequences, and convert packed sequences."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from numbarnn.common.precision import is_number

if TYPE_CHECKING:
    from numbarnn.common.typing import Array


@dataclass(frozen=True)
class Sequences:
    """Lengths, resets and padding of a call's sequences.

    Attributes:
        lengths: (B,) int32, NumPy; None: all are T.
        resets: (T, B) uint8, NumPy or the engine's, nonzero where a sequence restarts; None: nowhere.
        padding_value: value of y beyond a sequence's length.
        every_state: whether the last layer's cell states of every step are results too.
    """

    lengths: Any = None
    resets: Any = None
    padding_value: float = 0.0
    every_state: bool = False


NO_PADDING_VALUE = 0.0
EVERY_STEP = Sequences()  # all sequences have T steps, and none restarts


def checked(
    engine, lengths, resets, padding_value, steps, batch, batch_first=False, names=("lengths", "padding_value")
):
    """Return the `Sequences` of a call's arguments; `EVERY_STEP` itself if there are neither lengths nor resets.
    batch_first: whether resets are (B, T). names: the caller's names of lengths and padding_value, for messages."""
    if not is_number(padding_value):
        raise TypeError(f"{names[1]} must be a number, not {padding_value!r}")
    if lengths is None and resets is None:  # nothing is padded: no step gets the padding value
        return EVERY_STEP
    lengths = None if lengths is None else _checked_lengths(lengths, steps, batch, names[0])
    resets = None if resets is None else _checked_resets(engine, resets, steps, batch, batch_first)
    return Sequences(lengths, resets, float(padding_value))


def _checked_lengths(lengths, steps, batch, name):
    if hasattr(lengths, "__cuda_array_interface__"):
        raise TypeError(f"{name} must be on the host, a list or a NumPy array, but is on a GPU: copy it ({name}.get())")
    result = _host_array(lengths, name, f"{batch} ints, one per sequence")
    if result.dtype.kind not in "iu" and result.size:
        raise TypeError(f"{name} must be ints, one per sequence, but are of dtype {result.dtype}: {lengths!r}")
    if result.shape != (batch,):
        raise ValueError(f"{name} must have shape ({batch},), one per sequence, but has {result.shape}")
    wrong = np.flatnonzero((result < 0) | (result > steps))
    if wrong.size:
        raise ValueError(f"{name} must be 0 to {steps}, the steps of x, but {name}[{wrong[0]}] is {result[wrong[0]]}")
    return result.astype(np.int32)


def _host_array(value, name, wanted):
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be ignored: pass {name}.filled(...)")
    try:
        return np.asarray(value)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{name} must be {wanted}, not {value!r}: {error}") from error


def _checked_resets(engine, resets, steps, batch, batch_first):
    shape = (batch, steps) if batch_first else (steps, batch)
    on_host = isinstance(resets, np.ndarray | list | tuple)
    wanted = f"{shape[0]} by {shape[1]} bools"
    result = _host_array(resets, "resets", wanted) if on_host else engine.asarray(resets, "resets")
    if result.shape != shape:
        letters = "(B, T)" if batch_first else "(T, B)"
        raise ValueError(f"resets must have shape {letters} = {shape}, but has {result.shape}")
    if result.dtype.kind not in "biu":
        raise TypeError(f"resets must be bools, but are of dtype {result.dtype}: pass resets.astype(bool)")
    module = np if on_host else engine.array_module
    with engine.activate():
        return module.ascontiguousarray((result != 0).view(np.uint8).T if batch_first else (result != 0).view(np.uint8))


# ------------------------------------------------------------------------------------------ packed
@dataclass(frozen=True)
class PackedSequence:
    """Hold sequences of different lengths without padding, like torch.nn.utils.rnn.PackedSequence.

    Attributes:
        data: all elements of step 0, then of step 1, ..., (sum of lengths, I); in each step the longest sequence first.
        batch_sizes: number of sequences in each step, (T,) ints on the host.
        sorted_indices: numbers of the sequences, the longest first, (B,) ints on the host. None if they are sorted
            already. States keep the original order.
        unsorted_indices: the inverse permutation, (B,). Default: from sorted_indices.
    """

    data: Any
    batch_sizes: Any
    sorted_indices: Any = None
    unsorted_indices: Any = None


def pack_padded_sequence(
    x: Array, lengths: Any, batch_first: bool = False, enforce_sorted: bool = False
) -> PackedSequence:
    """Pack padded sequences.

    Args:
        x: padded sequences, (T, B, I), or (B, T, I) with `batch_first`, in NumPy or CuPy.
        lengths: number of steps of each sequence, (B,) ints from 1 to T in any order, on the host.
        batch_first: x is (B, T, I).
        enforce_sorted: raise ValueError if lengths increase, as PyTorch does by default. sorted_indices are then None.

    Returns:
        a `PackedSequence`.

    Raises:
        TypeError, ValueError: x or lengths do not fit.

    Example:
        >>> packed = pack_padded_sequence(np.zeros((4, 2, 3)), [2, 4])
        >>> packed.data.shape, packed.batch_sizes.tolist()
        ((6, 3), [2, 2, 1, 1])
    """
    if getattr(x, "ndim", None) != 3:
        raise TypeError(f"x must be an array of three axes, not {x!r}")
    x = x.swapaxes(0, 1) if batch_first else x
    lengths = _checked_lengths(lengths, *x.shape[:2], "lengths")
    if lengths.min(initial=1) < 1:
        raise ValueError(
            "lengths must be at least 1 in a packed sequence, got 0: to include empty sequences, pass x and lengths to "
            "the layer instead"
        )
    if enforce_sorted and (np.diff(lengths) > 0).any():
        raise ValueError(
            f"lengths must not increase with enforce_sorted=True, got {lengths.tolist()}: use enforce_sorted=False"
        )
    order = np.argsort(-lengths, kind="stable")
    sizes = (lengths[None] > np.arange(lengths.max())[:, None]).sum(axis=1)
    packing = Packing(sizes, order, np.argsort(order, kind="stable"))
    indices = (None, None) if enforce_sorted else (order, packing.ranks)
    return PackedSequence(x.reshape(-1, x.shape[2])[packing.places], sizes, *indices)


def pad_packed_sequence(
    sequence: PackedSequence, batch_first: bool = False, padding_value: float = 0.0, total_length: int | None = None
) -> tuple[Array, np.ndarray[Any, Any]]:
    """Unpack a `PackedSequence`.

    Args:
        sequence: numbarnn's or PyTorch's.
        batch_first: return x as (B, T, I).
        padding_value: value of x beyond a sequence's length.
        total_length: T. Default: the longest length.

    Returns:
        x: padded sequences in their original order, (T, B, I), or (B, T, I) with `batch_first`.
        lengths: their lengths, (B,).
    """
    if not is_packed(sequence):
        raise TypeError(f"sequence must be a PackedSequence, not a {type(sequence).__qualname__}")
    packing = Packing.of(sequence)
    data, rows = sequence.data, packing.rows
    if total_length is not None:
        if not isinstance(total_length, Integral) or total_length < len(rows):
            raise ValueError(
                f"total_length must be an int of at least the longest, {len(rows)} steps, not {total_length!r}"
            )
        rows = np.pad(rows, ((0, total_length - len(rows)), (0, 0)), constant_values=-1)
    x = data[np.maximum(rows, 0).reshape(-1)].reshape(*rows.shape, data.shape[1])
    x[rows < 0] = padding_value
    return (x.swapaxes(0, 1) if batch_first else x), packing.lengths


@dataclass(frozen=True)
class Packing:
    """Positions of packed elements in padded sequences, and the reverse. NumPy arrays: batch_sizes (T,), order (B,),
    which is sorted_indices, and ranks (B,), which is unsorted_indices."""

    batch_sizes: np.ndarray
    order: np.ndarray
    ranks: np.ndarray

    @classmethod
    def of(cls, sequence):
        """Check a packed sequence, numbarnn's or PyTorch's, and return its Packing; TypeError or ValueError if its
        parts do not fit."""
        sizes = _host_ints(sequence.batch_sizes, "batch_sizes")
        if not sizes.size or sizes.min() < 1 or (np.diff(sizes) > 0).any() or sizes.sum() != len(sequence.data):
            raise ValueError(
                f"batch_sizes must be positive, never increase, and add up to the {len(sequence.data)} rows of data, "
                f"but are {sizes}"
            )
        batch, order = sizes[0], sequence.sorted_indices
        order = np.arange(batch) if order is None else _host_ints(order, "sorted_indices")
        if sorted(order.tolist()) != list(range(batch)):
            raise ValueError(f"sorted_indices must hold each of 0 to {batch - 1} once, but is {order}")
        ranks = np.argsort(order, kind="stable")
        unsorted = sequence.unsorted_indices
        if unsorted is not None and _host_ints(unsorted, "unsorted_indices").tolist() != ranks.tolist():
            raise ValueError(f"unsorted_indices must be argsort(sorted_indices) = {ranks}, but is {unsorted}")
        return cls(sizes, order, ranks)

    @cached_property
    def lengths(self):
        """Return the lengths in the original order, (B,) int32."""
        return (self.batch_sizes[None] > self.ranks[:, None]).sum(axis=1).astype(np.int32)

    @cached_property
    def rows(self):
        """Return the row of data for each padded element, (T, B) int64; -1 for padding."""
        starts = np.cumsum(self.batch_sizes) - self.batch_sizes
        rows = starts[:, None] + self.ranks[None]
        return np.where(np.arange(len(starts))[:, None] < self.lengths[None], rows, -1)

    def equals(self, other):
        """Return whether both map the same elements to the same positions."""
        return np.array_equal(self.batch_sizes, other.batch_sizes) and np.array_equal(self.order, other.order)

    @cached_property
    def places(self):
        """Return the row of padded elements (T*B, I) for each row of data, (sum of lengths,) int64."""
        rows = self.rows.reshape(-1)
        places = np.empty(self.batch_sizes.sum(), np.int64)
        places[rows[rows >= 0]] = np.flatnonzero(rows >= 0)
        return places

    def pad(self, engine, data, fill=0.0):
        """Return data (sum of lengths, N), an engine's array, padded to (T, B, N)."""
        return self._gather(engine, data, self.rows.reshape(-1), fill).reshape(*self.rows.shape, data.shape[1])

    def pack(self, engine, padded):
        """Return an engine's array (T, B, N) packed to (sum of lengths, N)."""
        return self._gather(engine, padded.reshape(-1, padded.shape[2]), self.places, 0.0)

    @staticmethod
    def _gather(engine, x, index, fill):
        with engine.activate():
            out = engine.empty((len(index), x.shape[1]), x.dtype.name)
            engine.gather(out, x, engine.from_host(index), fill)
        return out


def is_packed(x):
    """Return whether x is a packed sequence, numbarnn's or PyTorch's."""
    return isinstance(x, PackedSequence) or (hasattr(x, "batch_sizes") and hasattr(x, "sorted_indices"))


def _host_ints(value, name):
    if hasattr(value, "__cuda_array_interface__"):
        value = value.get() if hasattr(value, "get") else value.cpu()  # small, and needed here
    result = np.asarray(value)
    if result.dtype.kind not in "iu" or result.ndim != 1:
        raise TypeError(f"{name} must be one-dimensional and of ints, but is {value!r}")
    return result.astype(np.int64)
