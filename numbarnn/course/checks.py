"""Is an exercise solved? The answer is printed: "right", "not solved yet", or "wrong" and where."""

import ast
import copy
import inspect
import textwrap
import traceback

from .compare import describe, difference, is_changed, is_missing


def check(attempt, on=None, gives=None, *, of=None, name=None, tolerance=1e-9, mistakes=None, otherwise=None):
    """Print whether an attempt gives what is expected.

    Args:
        attempt: a function, or a value where `on` is None. Unsolved is what raises NotImplementedError, gives None or
            `...`, leaves NaN in all of its arrays, or has dots in its code. A function that changes an argument which
            it does not return is wrong: later cells go on with it.
        on: the arguments of each call, a list of tuples; what is no tuple is a single argument.
        gives: what is expected: a function of the same arguments, or a list with a value for each of `on`; where `on`
            is None the value itself.
        of: the student's function or kernel that `attempt`, written by the course, calls: errors quote its line.
        name: what the message calls it, the function's own name otherwise.
        tolerance: how far floats may differ, relative to the largest one that is expected.
        mistakes: for each known mistake ("adds the biases twice") what comes of it, in the form of `gives`; the message
            then names it.
        otherwise: what later cells use where the attempt is not right.

    Returns:
        The attempt if it is right, else `otherwise`; None if there is no `otherwise`.
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
    """Print the error of something that was broken on purpose, and whether it is the error that was asked for.

    Args:
        attempt: a function without arguments. Unsolved is what raises NotImplementedError, or no error and gives None.
        error: the class of the error that should come.
        says: parts of its message, each of which should be there.
        name: what the message calls the attempt, the function's own name otherwise.
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
    """(result, None) of a call, or (None, the error that it raised)."""
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
    """A line that names the mistake that gives the same, if one of them does."""
    for mistake, then in mistakes.items():
        if not difference(came, _given(then, number, arguments), tolerance):
            return f"\n    This comes of one that {mistake}."
    return ""


def _code(function):
    """The code of a function, or of the function of a kernel; None of anything else."""
    for name in ("py_func", "fn"):  # Numba's dispatchers, its simulator's kernels
        function = getattr(function, name, function)
    return getattr(function, "__code__", None)


def _has_dots(function):
    """Whether `...` stands in a function's code where a value belongs."""
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
    """An error with the line of the attempt from which it came, if it did."""
    file = getattr(_code(attempt), "co_filename", None)
    errors = [error, *([error.__cause__] if error.__cause__ else [])]
    frames = [frame for one in errors for frame in traceback.extract_tb(one.__traceback__) if frame.filename == file]
    line = f"\n    in the line: {frames[-1].line}" if frames and frames[-1].line else ""
    return f"{type(error).__name__}: {str(error).strip()}{line}"


def _tell(message, otherwise):
    """Print, and say with what the notebook goes on."""
    on_with = "" if otherwise is None else f"\n    The notebook goes on with {describe(otherwise)} in its place."
    print(message + on_with)
