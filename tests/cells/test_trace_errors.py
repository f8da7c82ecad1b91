"""Equations that cannot become a cell: what is said, with the line and the cure."""

import math

import numpy as np
import pytest

from numbarnn.cells import functions

from numbarnn.cells.functions import (  # isort: skip
    clip, drop_connect, dropout, elu, heads, layer_norm, leaky_relu, tanh, where, zoneout,
)  # fmt: skip
from numbarnn.cells.tracing import CellError, cell


def a_of(x, h, p):
    return p.W.a @ x + p.R.a @ h


# (what the message says; the line of the equations that it shows; the equations, with `h` the output of a step)
def python_if(x, h, p):
    if a_of(x, h, p) > 0:
        return h
    return -h


def truth_of_a_value(x, h, p):
    a = a_of(x, h, p)
    return h and a


def a_number_of_it(x, h, p):
    return math.exp(h)


def length(x, h, p):
    return len(h) * h


def entry(x, h, p):
    return h[0]


def loop_over_units(x, h, p):
    return sum(h)


def numpy_function(x, h, p):
    a = a_of(x, h, p)
    return np.tanh(a)


def numpy_square(x, h, p):
    return np.square(h)


def numpy_sum(x, h, p):
    return h / np.sum(h)


def numpy_where(x, h, p):
    return np.where(h > 0, h, 0)


def numpy_array(x, h, p):
    return np.asarray(h)


def an_array(x, h, p):
    return h * np.ones(3)


def a_list(x, h, p):
    return h + [1]  # noqa: RUF005


def a_string(x, h, p):
    return h * "2"


def method(x, h, p):
    return h / h.sum()


def transposed(x, h, p):
    return p.W.a.T @ x


def floor(x, h, p):
    return h // 2


def conditions_combined(x, h, p):
    return where((h > 0) & (h < 1), h, 0)


def condition_as_number(x, h, p):
    return h * (h > 0)


def number_as_condition(x, h, p):
    return where(h, h, 0)


def x_elementwise(x, h, p):
    return tanh(x) + h


def x_added(x, h, p):
    return h + x


def x_returned(x, h, p):
    return x


def matrix_right(x, h, p):
    return h @ p.R.a


def product_of_values(x, h, p):
    return h @ h


def matrix_times_matrix(x, h, p):
    return (p.R.a @ p.R.b) @ h


def matrix_times_number(x, h, p):
    return p.R.a @ 2.0


def array_times_value(x, h, p):
    return np.eye(3) @ h


def matrix_as_vector(x, h, p):
    a = p.R.a @ h
    return a + p.R.a


def vector_as_matrix(x, h, p):
    a = p.u * h
    return a + p.u @ h


def matrix_twice(x, h, p):
    a = p.R.a @ h
    return a + p.R.a @ tanh(h)


def matrix_of_x_and_h(x, h, p):
    a = p.W.a @ x
    return a + p.W.a @ h


def group_as_parameter(x, h, p):
    a = p.W.b.c @ x
    return a + p.W.b * h


def assignment(x, h, p):
    p.b = 3
    return h


def subscript(x, h, p):
    return p["W"] @ x


def unpacking(x, h, p):
    W, R = p
    return W @ x + R @ h


def traced_slope(x, h, p):
    return leaky_relu(h, p.slope)


def too_few(x, h, c, p):
    return a_of(x, h, p)


def too_many(x, h, p):
    return a_of(x, h, p), h


def nothing(x, h, p):
    a_of(x, h, p)


def a_number(x, h, c, p):
    return a_of(x, h, p), 0.0


def a_condition(x, h, p):
    return a_of(x, h, p) > 0


def without_x(x, h, p):
    return tanh(p.R.a @ h)


def forbidden_name(x, h, p):
    return p.W.a @ x * p.bias.ih


def two_alike(x, h, p):
    return p.W.a @ x * p.v.a * p.v_a


def heads_of_x(x, h, p):
    return heads(p.W, 2).a @ x + p.R.a @ h


def different_heads(x, h, p):
    return a_of(x, h, p) + heads(p.R.b, 2) @ h


def heads_of_a_value(x, h, p):
    return heads(h, 2) @ h


def two_rates_of_one_matrix(x, h, p):
    a = p.W.a @ x + p.R.a @ h
    return a + drop_connect(p.R.a, 0.5) @ h


def projection_with_heads(x, h, c, p):
    m = tanh(p.W.a @ x + heads(p.R.a, 2) @ h)
    return heads(p.P.h, 2) @ m, c + m


def sum_of_a_number(x, h, p):
    return a_of(x, h, p) * functions.sum(2.0)


def traced_rate(x, h, p):
    return dropout(a_of(x, h, p), p.rate)


def norm_of_x(x, h, p):
    return layer_norm(x) + h


MESSAGES = {
    python_if: ("the truth of a comparison of traced values.*where", "if a_of(x, h, p) > 0:"),
    truth_of_a_value: (r"the truth of the traced value 'h' \(in if, while, and", "return h and a"),
    a_number_of_it: ("'h' as a Python number .*use numbarnn's functions", "return math.exp(h)"),
    length: ("'h' as an array .*how many is not known yet; sums over all units are numbarnn.sum", "return len(h) * h"),
    entry: ("'h' as an array", "return h[0]"),
    loop_over_units: ("'h' as an array", "return sum(h)"),
    numpy_function: ("NumPy's tanh of the traced value 'a'; use numbarnn.tanh", "return np.tanh(a)"),
    numpy_square: (r"NumPy's square of .*; use a \*\* 2", "return np.square(h)"),
    numpy_sum: ("NumPy's sum of", "return h / np.sum(h)"),
    numpy_where: ("NumPy's where of .*use numbarnn.where", "return np.where(h > 0, h, 0)"),
    numpy_array: ("'h' as a NumPy array", "return np.asarray(h)"),
    an_array: (r"an array of shape \(3,\) in an equation.*arrays are parameters: p.name", "return h * np.ones(3)"),
    a_list: (r"\[1\] \(list\) in an equation", "return h + [1]  # noqa: RUF005"),
    a_string: (r"'2' \(str\) in an equation; expected a traced value, a parameter or a number", 'return h * "2"'),
    method: ("'h' has no attribute 'sum'.*sums over all units are numbarnn.sum", "return h / h.sum()"),
    transposed: (r"p.W.a.T: parameters have no attributes of arrays", "return p.W.a.T @ x"),
    floor: ("with //, %", "return h // 2"),
    conditions_combined: ("a comparison of traced values with .*&.*combine comparisons by where",
                          "return where((h > 0) & (h < 1), h, 0)"),
    condition_as_number: (r"comparison as a number; choose with where\(condition, a, b\)", "return h * (h > 0)"),
    number_as_condition: ("where's condition is no comparison", "return where(h, h, 0)"),
    x_elementwise: ("the input x is used otherwise than in a product.*p.W.name @ x", "return tanh(x) + h"),
    x_added: ("the input x is used otherwise than in a product", "return h + x"),
    x_returned: ("the input x is used otherwise than in a product", "return x"),
    matrix_right: ("the traced value 'h' @ the parameter p.R.a; left of @ stands a matrix", "return h @ p.R.a"),
    product_of_values: ("left of @ stands a matrix: p.R.name @ vector", "return h @ h"),
    matrix_times_matrix: ("p.R.a @ p.R.b: a product of parameters", "return (p.R.a @ p.R.b) @ h"),
    matrix_times_number: (r"p.R.a @ 2.0 \(float\); expected x, a state", "return p.R.a @ 2.0"),
    array_times_value: ("NumPy's matmul of", "return np.eye(3) @ h"),
    matrix_as_vector: ("p.R.a is used as a vector here .* and as a matrix elsewhere; take two", "return a + p.R.a"),
    vector_as_matrix: ("p.u is used as a matrix here .* and as a vector elsewhere", "return a + p.u @ h"),
    matrix_twice: (r"the matrix p.R.a multiplies something else here than in line \d+", "return a + p.R.a @ tanh(h)"),
    matrix_of_x_and_h: ("the matrix p.W.a multiplies something else here", "return a + p.W.a @ h"),
    group_as_parameter: ("p.W.b is used as a parameter and, in p.W.b.c, as a group", "return a + p.W.b * h"),
    assignment: ("p.b = ...: parameters are learned", "p.b = 3"),
    subscript: (r"p\['W'\]: parameters have names", 'return p["W"] @ x'),
    unpacking: ("p cannot be unpacked", "W, R = p"),
    traced_slope: ("negative_slope must be a number, not the parameter p.slope", "return leaky_relu(h, p.slope)"),
    too_few: ("1 value returned; expected the new value of each state.*: h, c", "return a_of(x, h, p)"),
    too_many: ("2 values returned; .*: h", "return a_of(x, h, p), h"),
    nothing: ("nothing returned", "def nothing(x, h, p):"),
    a_number: (r"the new c is 0.0 \(float\); expected what is computed", "return a_of(x, h, p), 0.0"),
    a_condition: ("the new h is a comparison of traced values", "return a_of(x, h, p) > 0"),
    without_x: ("nothing that is returned depends on x", "return tanh(p.R.a @ h)"),
    forbidden_name: ("a vector may not be named p.bias.ih", "return p.W.a @ x * p.bias.ih"),
    heads_of_x: ("p.W.a @ x with heads or drop_connect, which are for", "return heads(p.W, 2).a @ x + p.R.a @ h"),
    different_heads: ("different numbers of heads: p.R.a 1, p.R.b 2", "return a_of(x, h, p) + heads(p.R.b, 2) @ h"),
    heads_of_a_value: ("heads of a value; expected a parameter", "return heads(h, 2) @ h"),
    two_rates_of_one_matrix: ("p.R.a has other heads or another drop", "return a + drop_connect(p.R.a, 0.5) @ h"),
    projection_with_heads: ("p.P.h, which makes the first state, with heads", "return heads(p.P.h, 2) @ m, c + m"),
    sum_of_a_number: ("the sum of 2.0 over all units, of which nothing", "return a_of(x, h, p) * functions.sum(2.0)"),
    traced_rate: ("rate must be a number, not the parameter p.rate", "return dropout(a_of(x, h, p), p.rate)"),
    norm_of_x: ("the input x is used otherwise than in a product", "return layer_norm(x) + h"),
    two_alike: ("p.v.a and p.v_a would both be the parameter v_a", "return p.W.a @ x * p.v.a * p.v_a"),
}  # fmt: skip


@pytest.mark.parametrize("equations", MESSAGES, ids=lambda equations: equations.__name__)
def test_message(equations):
    message, line = MESSAGES[equations]
    with pytest.raises(CellError, match=message) as caught:
        cell(equations)
    _, place, shown = str(caught.value).split("\n")
    assert shown.strip() == line
    number = int(place.rpartition(" ")[2]) - equations.__code__.co_firstlineno
    assert place.startswith(f'  File "{__file__}", line ') and 0 <= number < 5


def test_a_value_of_another_cell():
    kept = []

    @cell
    def first(x, h, p):
        kept.append(p.W.a @ x)
        return kept[0]

    with pytest.raises(CellError, match="a value of another cell"):
        cell(lambda x, h, p: h + kept[0])


# ---------------------------------------------------------------------------------------------------------- signature
def no_states(x, p):
    return x


def no_parameters(x, h):
    return h


def any_arguments(x, *states, p):
    return states


def no_default(x, h, p, rate):
    return p.W.a @ x * rate


@pytest.mark.parametrize("equations", (no_states, no_parameters, any_arguments))
def test_signature_is_checked(equations):
    with pytest.raises(CellError, match=r"expected \(x, h, ..., p\): the input, the states") as caught:
        cell(equations)
    assert str(caught.value).endswith(f"def {equations.__name__}{str(caught.value).rpartition(equations.__name__)[2]}")


def test_hyperparameters_are_checked():
    with pytest.raises(TypeError, match=r"no_default needs a value of rate: cell\(rate=...\)"):
        cell(no_default)
    with pytest.raises(TypeError, match="no_default has no hyperparameter speed; it has rate"):
        cell(no_default, speed=3)
    assert cell(no_default, rate=2.0).hyperparameters == {"rate": 2.0}


@pytest.mark.parametrize("function", (3, "lstm", None.__class__, CellError))
def test_what_is_traced_is_a_function(function):
    with pytest.raises(TypeError, match="cell takes a function of equations"):
        cell(function)


def test_save_is_checked():
    with pytest.raises(ValueError, match="save must be 'gates' or 'minimal', not 'all'"):
        cell(save="all")(python_if)


@pytest.mark.parametrize("function", (leaky_relu, elu))
def test_slopes_are_not_negative(function):
    with pytest.raises(ValueError, match="must be a number from 0 on, not -1"):
        function(np.ones(3), -1)


@pytest.mark.parametrize("rate", (1, 1.5, -0.1, np.nan))
def test_rates_are_probabilities(rate):
    for function in (dropout, drop_connect):
        with pytest.raises(ValueError, match=r"rate must be (a probability|a number) from 0"):
            function(np.ones(3), rate)
    with pytest.raises(ValueError, match=r"rate must be (a probability|a number) from 0"):
        zoneout(np.ones(3), np.ones(3), rate)


@pytest.mark.parametrize("count", (0, -2, 2.0, True, "2"))
def test_numbers_of_heads_are_positive_ints(count):
    with pytest.raises(ValueError, match="count must be an int from 1 on, the number of heads"):
        heads(np.ones((2, 2)), count)


def test_errors_of_the_equations_pass():
    with pytest.raises(NameError, match="undefined"):
        cell(lambda x, h, p: undefined(h))  # noqa: F821


def test_numbers_of_numpy_are_constants():
    traced = cell(
        lambda x, h, p: np.float64(2) * h + np.float32(0.5) * (p.W.a @ x) ** np.int64(2) + clip(h, -1, np.array(1))
    )
    assert traced.forward((3.0,), (), (0.5,), (), (), ())[0] == (6.0,)
    assert cell(lambda x, h, p: where(np.float64(1) < p.W.a @ x, h, 0)).forward((3.0,), (), (0.5,), (), (), ())[0] == (
        0.5,
    )
