"""The difference between the value that came and the one that was expected, in words."""

import numpy as np

SHORT = 60  # characters of a value in a message


def describe(value):
    """A value as a message shows it: small ones whole, arrays by their shape."""
    if isinstance(value, tuple | list) and any(isinstance(part, np.ndarray) for part in value):
        first, last = "()" if isinstance(value, tuple) else "[]"
        return f"{first}{', '.join(map(describe, value))}{last}"
    if isinstance(value, np.ndarray) and value.size > 6:
        return f"array {value.shape}"
    if isinstance(value, np.ndarray):
        return np.array2string(value, precision=4, separator=", ").replace("\n", "")
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    text = f"{value:.6g}" if isinstance(value, float) else repr(value)
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def is_missing(value):
    """Whether nothing was computed: None, `...`, or floats none of which was written."""
    if value is None or value is Ellipsis:
        return True
    if isinstance(value, tuple | list):
        return bool(value) and all(map(is_missing, value))
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 0 and bool(np.isnan(value).all())


def is_changed(now, before):
    """Whether an array, or one within tuples, lists and dicts, differs from its former copy."""
    if isinstance(now, np.ndarray):
        return not np.array_equal(now, before, equal_nan=now.dtype.kind == "f")
    if isinstance(now, tuple | list):
        return len(now) != len(before) or any(map(is_changed, now, before))
    if isinstance(now, dict):
        return now.keys() != before.keys() or any(is_changed(now[key], before[key]) for key in now)
    return False


def difference(came, expected, tolerance):
    """Describe the fault of a value; None if it is right.

    Args:
        came, expected: numbers, arrays, strings, or tuples, lists and dicts of them.
        tolerance: how far floats may differ, relative to the largest expected one.
    """
    if isinstance(expected, dict):
        if not isinstance(came, dict) or set(came) != set(expected):
            return f"came {describe(came)}, expected a dict with the keys {', '.join(map(repr, expected))}"
        return _first((f"[{key!r}]", difference(came[key], expected[key], tolerance)) for key in expected)
    if isinstance(expected, tuple | list):
        if not isinstance(came, tuple | list) or len(came) != len(expected):
            return f"came {describe(came)}, expected {len(expected)} values: {describe(expected)}"
        pairs = enumerate(zip(came, expected, strict=True))
        return _first((f"[{k}]", difference(*pair, tolerance)) for k, pair in pairs)
    if isinstance(expected, np.ndarray | np.number | int | float) and not isinstance(expected, bool):
        return _of_numbers(came, expected, tolerance)
    return None if came == expected else f"came {describe(came)}, expected {describe(expected)}"


def _first(found):
    """The first difference of the parts, with its place in front."""
    return next((f"at {place}: {what}" for place, what in found if what), None)


def _of_numbers(came, expected, tolerance):
    try:
        array = np.asarray(came)
    except ValueError:  # lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        return f"came {describe(came)}, expected {describe(expected)}"
    came, expected = array, np.asarray(expected)
    if came.shape != expected.shape:
        return f"came {_kind(came)}, expected {_kind(expected)}"
    largest = np.abs(expected[np.isfinite(expected)]).max(initial=0.0)
    exact = expected.dtype.kind in "biu" and came.dtype.kind in "biu"
    bad = ~np.isclose(came, expected, rtol=0, atol=0 if exact else tolerance * max(largest, 1e-30), equal_nan=True)
    if not bad.any():
        return None
    first = tuple(int(k) for k in np.argwhere(bad)[0])
    place = f"at [{', '.join(map(str, first))}] " if first else ""
    others = f" ({bad.sum()} of {bad.size} elements differ)" if bad.size > 1 else ""
    unwritten = " (NaN: nothing was written there)" if came.dtype.kind == "f" and np.isnan(came[first]) else ""
    digits = 6 if f"{came[first]:.6g}" != f"{expected[first]:.6g}" else 16
    return f"{place}came {came[first]:.{digits}g}{unwritten}, expected {expected[first]:.{digits}g}{others}"


def _kind(array):
    return f"an array {array.shape}" if array.ndim else f"one number, {array:.6g}"
