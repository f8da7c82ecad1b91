"""Checks of exercises: what is right, wrong and not solved yet, and what is said of it."""

import numpy as np
import pytest

from numbarnn import course


def said(capsys, *arguments, **options):
    result = course.check(*arguments, **options)
    return capsys.readouterr().out.rstrip("\n"), result


def double(x):
    return 2 * x


def unsolved(x):
    raise NotImplementedError


def test_right(capsys):
    text, result = said(capsys, double, on=[1, (np.ones(3),)], gives=lambda x: x + x, otherwise=abs)
    assert (text, result) == ("right: double, in 2 cases", double)
    assert said(capsys, double, on=[1], gives=[2]) == ("right: double, in 1 case", None)
    assert said(capsys, 7, gives=7, name="where it begins") == ("right: where it begins", None)
    assert said(capsys, lambda: 4, on=[()], gives=[5], name="y of f")[0] == "wrong: y of f: came 4, expected 5"
    assert said(capsys, {"a": (1, "x")}, gives={"a": [1, "x"]})[0] == "right: your answer"


@pytest.mark.parametrize(
    "attempt", (unsolved, lambda x: None, lambda x: ..., lambda x: np.full(3, np.nan), lambda x: (None, None))
)
def test_not_solved_yet(capsys, attempt):
    text, result = said(capsys, attempt, on=[np.ones(3)], gives=double, name="f", otherwise=double)
    assert text.splitlines() == [
        "not solved yet: f([1., 1., 1.]) should give [2., 2., 2.]",
        "    The notebook goes on with double in its place.",
    ]
    assert result is double


def test_unsolved_value(capsys):
    text, result = said(capsys, ..., gives=132, name="offset", otherwise=132)
    assert text.startswith("not solved yet: offset should be 132") and result == 132


@pytest.mark.parametrize(
    "came, expected, message",
    [
        (3, 2, "came 3, expected 2"),
        (np.array([[1.0, 2, 3], [4, 5, 7]]), np.arange(1.0, 7).reshape(2, 3), "at [1, 2] came 7, expected 6 (1 of 6"),
        (np.array([1.0, np.nan]), np.ones(2), "at [1] came nan (NaN: nothing was written there), expected 1"),
        (np.ones((2, 3)), np.ones((3, 2)), "came an array (2, 3), expected an array (3, 2)"),
        (np.ones(2), 1.0, "came an array (2,), expected one number, 1"),
        ("two", 2, "came 'two', expected 2"),
        ("ifog", "ifgo", "came 'ifog', expected 'ifgo'"),
        ((1, 2), (1, 3), "at [1]: came 2, expected 3"),
        ((1,), (1, 3), "came (1,), expected 2 values: (1, 3)"),
        ({"a": 1}, {"b": 1}, "came {'a': 1}, expected a dict with the keys 'b'"),
        ({"a": 1}, {"a": 2}, "at ['a']: came 1, expected 2"),
        (1 + 1e-6, 1.0, "came 1.000001, expected 1"),
        (True, False, "came True, expected False"),
        (object, 1, "came object, expected 1"),
    ],
)
def test_wrong(capsys, came, expected, message):
    text, result = said(capsys, lambda x: came, on=[0], gives=[expected], name="f", otherwise=double)
    assert text.startswith(f"wrong: f(0): {message}") and result is double


def test_errors_of_an_attempt_name_their_line(capsys):
    def attempt(x):
        return x[5]

    text, _ = said(capsys, attempt, on=[np.ones(3)], gives=[1])
    assert text.startswith("wrong: attempt([1., 1., 1.]): raised IndexError: index 5 is out of bounds")
    assert text.endswith("in the line: return x[5]")
    assert "it is no function but 5" in said(capsys, 5, on=[1], gives=[1], name="f")[0]


def test_known_mistakes_are_named(capsys):
    mistakes = {"does not double": lambda x: x, "squares": lambda x: x * x}
    assert "This comes of one that squares." in said(capsys, np.square, on=[3.0], gives=double, mistakes=mistakes)[0]
    assert "This comes" not in said(capsys, np.sqrt, on=[3.0], gives=double, mistakes=mistakes)[0]


def test_an_attempt_that_changes_its_arguments_is_wrong_and_changes_copies(capsys):
    x = np.ones(2)

    def attempt(pair, array):
        array += pair[0]
        return array + 0

    text, result = said(capsys, attempt, on=[((x, 1), x.copy())], gives=lambda pair, y: pair[0] + y, otherwise=double)
    assert "the result is right, but it changes array, which later cells use: work on a copy" in text
    assert x[0] == 1 and result is double


def test_dots_in_code_are_unsolved_but_not_those_of_a_docstring_or_an_index(capsys):
    def solved(x):
        """Doubles all of it (x, 2 x, ...)."""
        return 2 * x[..., :]

    def dotted(x):
        return 2 * x if x is not ... else x

    assert said(capsys, solved, on=[np.ones(2)], gives=double)[0].startswith("right")
    assert said(capsys, dotted, on=[np.ones(2)], gives=double)[0].startswith("not solved yet")
    assert said(capsys, lambda x: dotted(x), on=[np.ones(2)], gives=double, of=dotted)[0].startswith("not solved yet")


def test_an_error_within_the_courses_own_code_quotes_the_students_line_or_none(capsys):
    """Student's code is in a file of its own, as a notebook's cell is."""
    namespace = {}
    exec(compile("def student(x):\n    return x[5]", "cell.py", "exec"), namespace)
    student = namespace["student"]

    def attempt(x):
        return student(x) + x[9]

    text, _ = said(capsys, attempt, on=[np.ones(3)], gives=[1], of=student)
    assert "raised IndexError: index 5" in text and "student(x) + x[9]" not in text
    text, _ = said(capsys, attempt, on=[np.ones(6)], gives=[1], of=student)
    assert text.endswith("index 9 is out of bounds for axis 0 with size 6")


def test_breaks(capsys):
    def attempt():
        return [0][1]

    course.breaks(attempt, IndexError, "list", "out of range")
    assert capsys.readouterr().out.startswith("right: attempt() broke. What is said:\n\nIndexError: list index out of")
    course.breaks(attempt, IndexError, "list", "block")
    assert "Expected IndexError: ... list ... block ..." in capsys.readouterr().out
    course.breaks(attempt, KeyError, "out of range")
    assert capsys.readouterr().out.startswith("wrong: attempt() raised IndexError")
    course.breaks(lambda: 3, IndexError, "block", name="f")
    assert capsys.readouterr().out.startswith(
        "wrong: f() did not break: it gives 3; expected IndexError: ... block ..."
    )
    for attempt in (lambda: None, lambda: unsolved(0)):
        course.breaks(attempt, IndexError, "block", name="f")
        assert capsys.readouterr().out == "not solved yet: f() should raise IndexError: ... block ...\n"
