"""The independent Philox, under the name by which tests have known it: see `numbarnn.reference.philox`."""

from numbarnn.reference.philox import dropout_mask, mulhilo32, philox4x32, random_words

__all__ = ["dropout_mask", "mulhilo32", "philox4x32", "random_words"]
