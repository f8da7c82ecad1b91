"""Packed sequences (layers/sequences.py): packing and unpacking, as PyTorch has them, and what is refused."""

import re
from types import SimpleNamespace

import numpy as np
import pytest

from numbarnn.layers.sequences import PackedSequence, pack_padded_sequence, pad_packed_sequence

LENGTHS = {
    "one": [1],
    "equal": [3, 3, 3],
    "sorted": [5, 4, 2, 1],
    "rising": [1, 2, 4, 5],
    "ties": [2, 5, 2, 5, 1],
    "short": [2, 1, 3],  # all shorter than T = 5
}
by_lengths = pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
by_layout = pytest.mark.parametrize("batch_first", (False, True), ids=("time_first", "batch_first"))
FIELDS = ("batch_sizes", "sorted_indices", "unsorted_indices")


def padded(lengths, steps=5, width=3, fill=0.0):
    """(T, B, I) random numbers, `fill` beyond the lengths."""
    x = np.random.default_rng(0).standard_normal((steps, len(lengths), width))
    x[np.arange(steps)[:, None] >= np.array(lengths)] = fill
    return x


def swapped(x, batch_first):
    return x.swapaxes(0, 1) if batch_first else x


# ------------------------------------------------------------------------------------------------------ there and back


@by_layout
def test_sorted_lengths_and_a_total_length_are_pytorchs(batch_first):
    """enforce_sorted keeps no indices and refuses other orders; total_length pads beyond the longest sequence."""
    torch = pytest.importorskip("torch")
    rnn, lengths = torch.nn.utils.rnn, [5, 3, 3]
    x = swapped(padded(lengths), batch_first)
    theirs = rnn.pack_padded_sequence(torch.tensor(x), lengths, batch_first, enforce_sorted=True)
    ours = pack_padded_sequence(x, lengths, batch_first, enforce_sorted=True)
    np.testing.assert_array_equal(ours.data, theirs.data.numpy())
    assert theirs.sorted_indices is None and ours.sorted_indices is None and ours.unsorted_indices is None
    for total in (5, 9):
        expected, _ = rnn.pad_packed_sequence(theirs, batch_first, 1.5, total_length=total)
        found, found_lengths = pad_packed_sequence(ours, batch_first, 1.5, total_length=total)
        np.testing.assert_array_equal(found, expected.numpy())
        assert found_lengths.tolist() == lengths
    with pytest.raises(ValueError, match=r"must not increase with enforce_sorted=True, got \[3, 5, 3\]: use"):
        pack_padded_sequence(x, [3, 5, 3], batch_first, enforce_sorted=True)
    for total in (4, 5.5):
        with pytest.raises(ValueError, match="total_length must be an int of at least the longest, 5 steps, not"):
            pad_packed_sequence(ours, total_length=total)


@by_layout
@by_lengths
def test_equal_to_pytorchs(lengths, batch_first):
    """The same fields, also from a tensor's packed sequence, and padded again the same."""
    torch = pytest.importorskip("torch")
    x = swapped(padded(lengths), batch_first)
    rnn, options = torch.nn.utils.rnn, {"batch_first": batch_first}
    theirs = rnn.pack_padded_sequence(torch.tensor(x), lengths, enforce_sorted=False, **options)
    ours = pack_padded_sequence(x, lengths, batch_first)
    # Of equal sequences either may come first: PyTorch's sort is not stable.
    for b, (one, other) in enumerate(zip(ours.sorted_indices, theirs.sorted_indices.tolist(), strict=True)):
        assert lengths[one] == lengths[other], b
    assert ours.batch_sizes.tolist() == theirs.batch_sizes.tolist()
    if len(set(lengths)) == len(lengths):
        np.testing.assert_array_equal(ours.data, theirs.data.numpy())
        assert ours.unsorted_indices.tolist() == theirs.unsorted_indices.tolist()
    numpys = PackedSequence(theirs.data.numpy(), *(getattr(theirs, name) for name in FIELDS))
    for fill in (0.0, 1.5):
        expected, expected_lengths = rnn.pad_packed_sequence(theirs, padding_value=fill, **options)
        for packed in (ours, numpys):
            back, back_lengths = pad_packed_sequence(packed, batch_first, fill)
            np.testing.assert_array_equal(back, expected.numpy())
            assert back_lengths.tolist() == expected_lengths.tolist() == lengths
    back = rnn.pad_packed_sequence(
        rnn.PackedSequence(torch.tensor(ours.data), *(torch.tensor(getattr(ours, name)) for name in FIELDS)), **options
    )
    np.testing.assert_array_equal(back[0].numpy(), swapped(padded(lengths)[: max(lengths)], batch_first))


def test_indices_may_be_missing():
    """Sorted sequences need none; the reverse is made from sorted_indices."""
    lengths = [5, 4, 2, 1]
    x, packed = padded(lengths), pack_padded_sequence(padded(lengths), lengths)
    for change in ({}, {"sorted_indices": np.arange(4)}, {"unsorted_indices": np.arange(4)}):
        back, back_lengths = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes, **change))
        np.testing.assert_array_equal(back, x)
        assert back_lengths.tolist() == lengths
    lengths = [1, 5, 2]
    packed = pack_padded_sequence(padded(lengths), lengths)
    back, _ = pad_packed_sequence(PackedSequence(packed.data, packed.batch_sizes, packed.sorted_indices))
    np.testing.assert_array_equal(back, padded(lengths))


# -------------------------------------------------------------------------------------------------------------- refused
BAD_LENGTHS = {
    "zero": (ValueError, [2, 0, 1], "lengths must be at least 1 in a packed sequence, got 0"),
    "too long": (ValueError, [2, 6, 1], "lengths must be 0 to 5, the steps of x, but lengths[1] is 6"),
    "negative": (ValueError, [2, 1, -1], "lengths must be 0 to 5, the steps of x, but lengths[2] is -1"),
    "too few": (ValueError, [2, 1], "lengths must have shape (3,), one per sequence, but has (2,)"),
    "nested": (ValueError, [[2, 1, 1]], "lengths must have shape (3,), one per sequence, but has (1, 3)"),
    "floats": (TypeError, [2.0, 1.0, 1.0], "lengths must be ints, one per sequence, but are of dtype float64"),
    "bools": (TypeError, [True, True, False], "lengths must be ints, one per sequence, but are of dtype bool"),
    "ragged": (TypeError, [[2], [1, 1], 3], "lengths must be 3 ints, one per sequence, not [[2], [1, 1], 3]"),
    "on a GPU": (TypeError, SimpleNamespace(__cuda_array_interface__={}), "lengths must be on the host"),
}


@by_layout
@pytest.mark.parametrize("error, lengths, message", BAD_LENGTHS.values(), ids=BAD_LENGTHS)
def test_lengths_that_cannot_be(error, lengths, message, batch_first):
    x = padded([5, 5, 5])
    with pytest.raises(error, match=re.escape(message)):
        pack_padded_sequence(swapped(x, batch_first), lengths, batch_first)


SIZES_MESSAGE = "batch_sizes must be positive, never increase, and add up to the 3 rows of data, but are "
BAD_PARTS = {
    "sizes that grow": (ValueError, {"batch_sizes": [1, 2]}, SIZES_MESSAGE + "[1 2]"),
    "sizes of nothing": (ValueError, {"batch_sizes": [3, 0]}, SIZES_MESSAGE + "[3 0]"),
    "sizes that lack rows": (ValueError, {"batch_sizes": [2]}, SIZES_MESSAGE + "[2]"),
    "sizes of more rows": (ValueError, {"batch_sizes": [2, 2]}, SIZES_MESSAGE + "[2 2]"),
    "no sizes": (ValueError, {"batch_sizes": np.zeros(0, int)}, SIZES_MESSAGE + "[]"),
    "sizes of floats": (TypeError, {"batch_sizes": [2.0, 1.0]}, "batch_sizes must be one-dimensional and of ints"),
    "sizes as a table": (TypeError, {"batch_sizes": [[2, 1]]}, "batch_sizes must be one-dimensional and of ints"),
    "an index twice": (ValueError, {"sorted_indices": [0, 0]}, "sorted_indices must hold each of 0 to 1 once"),
    "an index too many": (ValueError, {"sorted_indices": [0, 1, 2]}, "sorted_indices must hold each of 0 to 1 once"),
    "indices of floats": (TypeError, {"sorted_indices": [0.0, 1.0]}, "sorted_indices must be one-dimensional and of"),
    "no reverse": (
        ValueError,
        {"sorted_indices": [1, 0], "unsorted_indices": [0, 1]},
        "unsorted_indices must be argsort(sorted_indices)",
    ),
}


@pytest.mark.parametrize("error, change, message", BAD_PARTS.values(), ids=BAD_PARTS)
def test_parts_that_do_not_go_together(error, change, message):
    parts = {"data": np.ones((3, 2)), "batch_sizes": [2, 1], "sorted_indices": None, "unsorted_indices": None}
    with pytest.raises(error, match=re.escape(message)):
        pad_packed_sequence(PackedSequence(**parts | change))
