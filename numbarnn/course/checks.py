"""Check the exercises of the course: print "right", "not solved yet", or "wrong" and where."""

import ast
import copy
import inspect
import textwrap
import traceback

import numpy as np

SHORT = 60  # most characters of a value in a message


def check(attempt, on=None, gives=None, *, of=None, name=None, tolerance=1e-9, mistakes=None, otherwise=None):
    """Print whether an attempt gives the expected values.

    An attempt is unsolved if it raises NotImplementedError, returns None or `...`, leaves NaN in all of its arrays, or
    has dots in its code. A function that changes an argument without returning it is wrong, since later cells use the
    argument.

    Args:
        attempt: a function, or a value if `on` is None.
        on: list of argument tuples, one per call; a single argument needs no tuple.
        gives: the expected values: a function of the same arguments, or a list with a value for each element of `on`.
            If `on` is None, the expected value itself.
        of: the student's function or kernel, if `attempt` is a function of the course that calls it. Errors quote its
            line.
        name: the attempt's name in the message; by default the function's name.
        tolerance: largest error of floats, relative to the largest expected one.
        mistakes: text of a known mistake ("adds the biases twice") -> its results, in the form of `gives`. The message
            names the mistake if the results match.
        otherwise: what later cells use if the attempt is not right.

    Returns:
        The attempt if it is right, else `otherwise`; None without `otherwise`.
    """
    name = name or getattr(attempt, "__name__", "your answer")
    calls = [None] if on is None else [one if isinstance(one, tuple) else (one,) for one in on]
    for number, arguments in enumerate(calls):
        expected = _given(gives, number, arguments)
        shown = name if not arguments else f"{name}({', '.join(map(describe, arguments))})"
        given = copy.deepcopy(arguments)
        came, problem = (attempt, None) if arguments is None else _call(attempt, given)
        missing = problem is None and is_missing(came)
        if missing or isinstance(problem, NotImplementedError) or _has_dots(of or attempt):
            should = "should be" if arguments is None else "should give"
            _tell(f"not solved yet: {shown} {should} {describe(expected)}", otherwise)
            return otherwise
        problem = f"raised {_where(problem, of or attempt)}" if problem else difference(came, expected, tolerance)
        pairs = () if arguments is None else enumerate(zip(given, arguments, strict=True))
        places = [k for k, (now, before) in pairs if now is not came and is_changed(now, before)]
        if places and not problem:
            names = list(inspect.signature(attempt).parameters)
            changed = ", ".join(names[k] if k < len(names) else f"argument {k}" for k in places)
            problem = f"the result is right, but it changes {changed}, which later cells use: work on a copy"
        if problem:
            hint = _known(came, mistakes or {}, number, arguments, tolerance)
            _tell(f"wrong: {shown}: {problem}{hint}", otherwise)
            return otherwise
    print(f"right: {name}" + ("" if on is None else f", in {len(calls)} case{'s' * (len(calls) > 1)}"))
    return attempt if otherwise is not None else None


def breaks(attempt, error, *says, name=None):
    """Print the error that an attempt raises, and whether it is the expected error.

    Args:
        attempt: a function without arguments. It is unsolved if it raises NotImplementedError or returns None.
        error: class of the expected error.
        says: texts that its message must contain.
        name: the attempt's name in the message; by default the function's name.
    """
    name = name or attempt.__name__
    expected = f"{error.__name__}: ... {' ... '.join(says)} ..."
    came, problem = _call(attempt, ())
    if isinstance(problem, NotImplementedError) or (problem is None and came is None):
        print(f"not solved yet: {name}() should raise {expected}")
    elif problem is None:
        print(f"wrong: {name}() did not break: it gives {describe(came)}; expected {expected}")
    elif not isinstance(problem, error) or not all(part in str(problem) for part in says):
        print(f"wrong: {name}() raised {_where(problem, attempt)}\n    Expected {expected}")
    else:
        print(f"right: {name}() broke. What is said:\n\n{type(problem).__name__}: {problem}")


def _call(attempt, arguments):
    """Return (result, None), or (None, the error) of a call that fails."""
    if not callable(attempt):
        return None, TypeError(f"it is no function but {describe(attempt)}")
    try:
        return attempt(*arguments), None
    except Exception as error:
        return None, error


def _given(gives, number, arguments):
    if arguments is None:
        return gives
    return gives(*copy.deepcopy(arguments)) if callable(gives) else gives[number]


def _known(came, mistakes, number, arguments, tolerance):
    """Return a line that names the mistake with the same results, or an empty text."""
    for mistake, then in mistakes.items():
        if not difference(came, _given(then, number, arguments), tolerance):
            return f"\n    This comes of one that {mistake}."
    return ""


def _code(function):
    """Return the code of a function or kernel, or None for any other value."""
    for name in ("py_func", "fn"):  # of kernels of Numba and of its simulator
        function = getattr(function, name, function)
    return getattr(function, "__code__", None)


def _has_dots(function):
    """Return whether a function's code has `...` in place of a value."""
    if (code := _code(function)) is None:
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(code)))
    except (OSError, SyntaxError):  # no source, or a lambda within other code
        return False
    slices = [part for node in ast.walk(tree) if isinstance(node, ast.Subscript) for part in ast.walk(node.slice)]
    dots = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and node.value is ...]
    return any(node not in slices for node in dots)


def _where(error, attempt):
    """Describe an error, with the attempt's line that raised it."""
    file = getattr(_code(attempt), "co_filename", None)
    errors = [error, *([error.__cause__] if error.__cause__ else [])]
    frames = [frame for one in errors for frame in traceback.extract_tb(one.__traceback__) if frame.filename == file]
    line = f"\n    in the line: {frames[-1].line}" if frames and frames[-1].line else ""
    return f"{type(error).__name__}: {str(error).strip()}{line}"


def _tell(message, otherwise):
    on_with = "" if otherwise is None else f"\n    The notebook goes on with {describe(otherwise)} in its place."
    print(message + on_with)


# ---- differences
def describe(value):
    """Return a value as text: a large array as its shape, a long text shortened."""
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
    """Return whether nothing was computed: the value is None, `...`, or an array full of NaN."""
    if value is None or value is Ellipsis:
        return True
    if isinstance(value, tuple | list):
        return bool(value) and all(map(is_missing, value))
    return isinstance(value, np.ndarray) and value.dtype.kind == "f" and value.size > 0 and bool(np.isnan(value).all())


def is_changed(now, before):
    """Return whether an array differs from its earlier copy, also within tuples, lists and dicts."""
    if isinstance(now, np.ndarray):
        return not np.array_equal(now, before, equal_nan=now.dtype.kind == "f")
    if isinstance(now, tuple | list):
        return len(now) != len(before) or any(map(is_changed, now, before))
    if isinstance(now, dict):
        return now.keys() != before.keys() or any(is_changed(now[key], before[key]) for key in now)
    return False


def difference(came, expected, tolerance):
    """Describe how a value differs from the expected one, or return None.

    Args:
        came, expected: numbers, arrays, strings, or tuples, lists and dicts of them.
        tolerance: largest error of floats, relative to the largest expected one.
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
        return _difference_of_numbers(came, expected, tolerance)
    return None if came == expected else f"came {describe(came)}, expected {describe(expected)}"


def _first(found):
    """Return the first difference with its place, from pairs (place, difference or None)."""
    return next((f"at {place}: {what}" for place, what in found if what), None)


def _difference_of_numbers(came, expected, tolerance):
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
