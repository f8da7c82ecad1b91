"""Equations that cannot become a cell: what is said, with the line and the cure."""

import math
import random
import re
import warnings

import numpy as np
import pytest

import numbarnn
from child import in_child
from numbarnn.cells import functions
from numbarnn.cells.definition import Given
from numbarnn.cells.functions import clip, drop_connect, dropout, elu, heads, leaky_relu, sigmoid, tanh, where, zoneout
from numbarnn.cells.tracing import CellError, cell


def a_of(x, h, p):
    return p.W.a @ x + p.R.a @ h


FUNCTIONS = ("columns", "drop_connect", "dropout", "heads", "layer_norm", "leaky_relu", "tanh", "where")
# Name -> (what a step's function says, what the message says; the line that it shows, where that is not the last).
EQUATIONS = {
    "python_if": (
        "if a_of(x, h, p) > 0:\n    return h\nreturn -h",
        "the truth of a comparison of traced values.*where", "if a_of(x, h, p) > 0:",
    ),
    "truth_of_a_value": ("a = a_of(x, h, p)\nreturn h and a", r"the truth of the traced value 'h' \(in if, while, and"),
    "a_number_of_it": ("return float(h)", "'h' as a Python number .*use numbarnn's functions"),
    "function_of_math": (
        "a = a_of(x, h, p)\nreturn math.tanh(a)", "'a' as a Python number .*in place of math.tanh use numbarnn.tanh"
    ),
    "other_function_of_math": ("return math.gamma(h)", r"in place of math.gamma use numbarnn's functions: abs, "),
    "round": ("return round(h)", r"in place of round use numbarnn.floor\(a \+ 0.5\)"),
    "max_of_two": ("return max(h, a_of(x, h, p))", "the truth of .*the larger and the smaller of two are numbarnn.max"),
    "complex_power": ("return h ** 2j", r"2j \(complex\) in an equation"),
    "power_by_name": ('return h ** "2"', r"'2' \(str\) in an equation"),
    "function_of_torch": (
        "a = a_of(x, h, p)\nreturn torch.tanh(a)", "PyTorch's tanh of the traced value 'a'.*; use numbarnn.tanh"
    ),
    "functional_of_torch": (
        "return torch.nn.functional.hardtanh(a_of(x, h, p))", r"PyTorch's hardtanh of .*use numbarnn.hard_tanh\(a\)"
    ),
    "torch_cat": ("return torch.cat([h, x])", r"PyTorch's cat of .*; use a matrix for each part: p.W.a @ x \+"),
    "length": (
        "return len(h) * h",
        "'h' as an array .*how many is not known yet; sums over all units are numbarnn.sum",
    ),
    "entry": ("return h[0]", r"a part of the traced value 'h', by \[...\]: .*A constant matrix selects units, np.eye"),
    "part_of_x": ("return p.W.a @ x + x[-1]", "a part of the input x, by .* constant matrix selects"),
    "entry_set": ("h[0] = 1\nreturn h", "a part of the traced value 'h' is set: a value .*where", "h[0] = 1"),
    "entry_of_a_parameter_set": ("p.b[0] = 1\nreturn h", "a part of the parameter p.b is set: a", "p.b[0] = 1"),
    "entry_deleted": ("del h[0]\nreturn h", "a part of the traced value 'h' is set", "del h[0]"),
    "parameter_set_by_key": ('p["b"] = 1\nreturn h', "p.b = ...: parameters are learned", 'p["b"] = 1'),
    "all_parameters_left": ("return p @ x", r"p, all parameters \(p.name is one\) @ the input x; left of @ stands"),
    "all_parameters_right": ("return p.W.a @ p", r"p.W.a @ p, all parameters \(p.name is one\); expected x, a state"),
    "all_parameters_times": ("return p * x", r"p, all parameters \(p.name is one\) in an equation"),
    "function_of_all_parameters": ("return tanh(p)", r"tanh of p, all parameters \(p.name is one\)"),
    "called": ("return p.W(x) + p.W.b @ h", "the parameter p.W is called as a function; .* left of @: p.W.name @ x"),
    "part_of_a_parameter": ("return p.W[0] @ x", r"p.W\[0\]: a parameter has no parts by number; several .* p.W.a"),
    "function_of_a_matrix": (
        "return p.W.a @ x + functions.relu(p.R) @ h", r"@ the traced value 'h'; .* none is a function of p.R: matrices",
    ),
    "matrix_without_gradient": (
        "return p.W.a @ x + functions.stop_gradient(p.R) @ h", "a matrix that is not learnt is a constant, numb",
    ),
    "numpy_roll": ("return np.roll(h, 1)", r"NumPy's roll of .* constant matrix .*: np.roll\(np.eye\(n\), 1, "),
    "numpy_fft": ("return np.fft.fft(h)", r"NumPy's fft of .* constant matrix .*: np.fft.fft\(np.eye\(n\)\).real"),
    "numpy_inverse": (
        "return np.linalg.inv(p.R.a) @ h", "NumPy's inv of .*; use an array that is computed before, .*p.R_inverse",
    ),
    "loop_over_units": ("return sum(h)", "'h' as an array"),
    "numpy_function": (
        "a = a_of(x, h, p)\nreturn np.tanh(a)",
        "NumPy's tanh of the traced value 'a', which numbarnn cannot derive; use numbarnn.tanh",
    ),
    "numpy_square": ("return np.square(h)", r"NumPy's square of .*; use a \*\* 2"),
    "numpy_sum": ("return h / np.sum(h)", "NumPy's sum of .*use numbarnn.sum"),
    "numpy_max": ("return h - np.max(h)", r"NumPy's max of .*use numbarnn.maximum\(a, b\) of two values; there is no"),
    "numpy_min": ("return h - np.min(h)", r"there is no smallest of .*; smoothly, it is -numbarnn.logsumexp\(-k \* a"),
    "numpy_einsum": ('return np.einsum("i,i", h, h)', r"NumPy's einsum of .*; use p.R.name @ a, or numbarnn.sum"),
    "numpy_concatenate": ("return np.concatenate([x, h])", "NumPy's concatenate of .*; use a matrix for each part"),
    "numpy_log1p": ("return np.log1p(h)", r"NumPy's log1p of .*; use numbarnn.log\(1 \+ a\)"),
    "numpy_unknown": ("return np.i0(h)", r"NumPy's \w+ of .*; use numbarnn's functions: abs"),
    "numpy_where": ("return np.where(h > 0, h, 0)", "NumPy's where of .*use numbarnn.where"),
    "numpy_array": ("return np.asarray(h)", "'h' as a NumPy array"),
    "an_array": (
        "return h * np.ones((3, 3))", r"an array of shape \(3, 3\) in an equation.*one number per unit, \(H,\), is a"
    ),
    "a_list_of_numbers": ("return h * [1.0, 2.0]", r"\[1.0, 2.0\] \(list\) in an equation.*an array of one number per"),
    "a_list": ("return h + [1]", r"\[1\] \(list\) in an equation"),
    "a_string": ('return h * "2"', r"'2' \(str\) in an equation; expected a traced value, a parameter or a number"),
    "method": ("return h / h.sum()", "'h' has no attribute 'sum'.*sums over all units are numbarnn.sum"),
    "method_of_tensors": ("return h.sigmoid()", r"'h' has no attribute 'sigmoid': use numbarnn.sigmoid"),
    "method_like_one": ("return h.logsigmoid()", "'h' has no attribute 'logsigmoid': use numbarnn.log_sigmoid"),
    "clamped": ("return h.clamp(0, 1)", r"'h' has no attribute 'clamp': use numbarnn.clip\(a, low, high\)"),
    "shape": ("return h / h.shape[0]", "'h' has no attribute 'shape': how many units there are is not known yet"),
    "transposed_value": ("return h.T", "'h' has no attribute 'T': one number per unit has no other side"),
    "matrix_memory": ("return (h @ a_of(x, h, p).T) @ h", "'T': .*a matrix .d, d., such as of v kᵀ, is .*sized.S, d"),
    "outer_product": ("return np.outer(h, h)", r"outer of .*; use v \* k, of each unit alone; .*Kronecker matrices"),
    "transposed": ("return p.R.a.transpose() @ h", r"p.R.a.transpose: write p.R.a.T"),
    "shape_of_a_matrix": ("return p.W.a.shape * h", "p.W.a.shape: parameters have no attributes of arrays but .T"),
    "floor": ("return h // 2", r"with //, divmod.*numbarnn.floor\(a / b\)"),
    "conditions_combined": (
        "return where((h > 0) & (h < 1), h, 0)",
        "a comparison of traced values with .*&.*combine comparisons by where",
    ),
    "condition_as_number": ("return h * (h > 0)", r"comparison cannot be .*. Choose with where\(condition, a, b\)"),
    "number_as_condition": ("return where(h, h, 0)", "where's condition is no comparison"),
    "matrix_right": ("return h @ p.R.a", "the traced value 'h' @ the parameter p.R.a; left of @ stands a matrix"),
    "product_of_values": ("return h @ h", "left of @ stands a matrix: p.R.name @ vector"),
    "inner_size": ("return p.W.a @ x + (p.R.a @ p.V) @ h", r"nothing says how many columns p.R.a has.*columns\(p.R.a"),
    "other_columns": (
        "u = columns(p.u, 2) @ (p.v @ h)\nreturn p.W.a @ x + columns(p.u, 3) @ (p.w @ h)",
        "p.u has 3 columns here and 2 elsewhere",
    ),
    "different_sizes": (
        "return p.W.a @ x + (columns(p.u, 2) @ p.v + columns(p.w, 3) @ p.v) @ h", "p.v stands in .*: 2 and 3 are",
    ),
    "narrow_of_a_value": ("return columns(p.U.a, 2) @ tanh(p.V.a @ h)", "p.U.a, of 2 columns, @ a value of all units"),
    "matrix_as_a_value": ("return (p.R.a @ p.R.b) * h", r"\(p.R.a @ p.R.b\), a matrix, as a value; matrices stand"),
    "transpose_as_a_value": ("return p.R.a.T * h", "p.R.a.T, a matrix, as a value"),
    "eye_as_a_value": ("return functions.eye() * h", r"numbarnn.eye\(\) \(Identity\) in an equation"),
    "matrix_and_number": ("return (p.R.a + 2) @ h", r"\(p.R.a \+ 2 \(int\)\) adds a number to a matrix.*numbarnn.eye"),
    "matrix_as_divisor": ("return (1 / p.R.a) @ h", "divides by a matrix; expected a number or a scalar"),
    "scalar_left": ("return p.scalar.a @ h", "p.scalar.a @ the traced value 'h': a scalar, one number per layer"),
    "scalar_transposed": ("return (p.scalar.a.T * p.R.a) @ h", "p.scalar.a.T of a scalar or a number"),
    "heads_within": ("return (heads(p.R.a, 2) - p.R.b) @ h", "p.R.a has heads or drop_connect, so"),
    "matrix_and_another": ("return (p.W.a + p.W.b) @ x * p.W_a", "would both be called W_a"),
    "matrix_times_number": ("return p.R.a @ 2.0", r"p.R.a @ 2.0 \(float\); expected x, a state"),
    "array_times_value": ("return np.ones(3) @ h", r"an array of shape \(3,\) @ the traced value 'h'; left of @"),
    "matrix_as_vector": (
        "a = p.R.a @ h\nreturn a + p.R.a",
        "p.R.a is used as a vector here .* and as a matrix elsewhere. Take two",
    ),
    "vector_as_matrix": (
        "a = p.u * h\nreturn a + p.u @ h",
        "p.u is used as a matrix here .* and as a vector elsewhere",
    ),
    "dropped_for_two": (
        "R = drop_connect(p.R.a, 0.5)\na = R @ h\nreturn a + R @ tanh(h)",
        "p.R.a with drop_connect multiplies several vectors",
    ),
    "group_as_parameter": (
        "a = p.W.b.c @ x\nreturn a + p.W.b * h",
        "p.W.b is used as a parameter and, in p.W.b.c, as a group",
    ),
    "forgotten_at": (
        "a = p.W * x\nreturn tanh(a + p.R * h)",
        "p.W, by its name a matrix, is multiplied element by element: .* p.W @ vector; .* p.diag", "a = p.W * x",
    ),
    "forgotten_at_of_a_gate": ("return tanh(p.W.a @ x + h * p.R.a)", r"p.R.a, by its name .*; .* such as p.diag"),
    "forgotten_at_in_another_group": ("return tanh(p.V.a @ x + p.V.b * h)", "p.V.b, by its name a matrix"),
    "assignment": ("p.b = 3\nreturn h", "p.b = ...: parameters are learned", "p.b = 3"),
    "assignment_in_a_group": ("p.b.a = 3\nreturn h", "p.b.a = ...: parameters are learned", "p.b.a = 3"),
    "subscript": ('return p["W"] @ x', r"p\['W'\]: parameters have names"),
    "unpacking": ("W, R = p\nreturn W @ x + R @ h", "p cannot be unpacked", "W, R = p"),
    "traced_slope": ("return leaky_relu(h, p.slope)", "negative_slope must be a number, not the parameter p.slope"),
    "too_few of two states": ("return a_of(x, h, p)", "1 value returned; expected the new value of each state.*: h, c"),
    "too_many": ("return a_of(x, h, p), h", "2 values returned; .*: h"),
    "nothing": ("a_of(x, h, p)", "nothing returned", "def equations(x, h, p):"),
    "a_number of two states": ("return a_of(x, h, p), 0.0", r"the new c is 0.0 \(float\); expected what is computed"),
    "a_condition": ("return a_of(x, h, p) > 0", "the new h is a comparison of traced values"),
    "without_x": ("return tanh(p.R.a @ h)", "nothing that is returned depends on x"),
    "forbidden_name": ("return p.W.a @ x * p.bias.ih", "a vector must not be named p.bias.ih"),
    "heads_of_x": ("return heads(p.W, 2).a @ x + p.R.a @ h", "p.W.a @ x with heads or drop_connect, which are for"),
    "different_heads": ("return a_of(x, h, p) + heads(p.R.b, 2) @ h", "one number of heads, got p.R.a 1, p.R.b 2"),
    "heads_of_a_value": ("return heads(h, 2) @ h", "heads takes a parameter"),
    "two_rates_of_one_matrix": (
        "a = p.W.a @ x + p.R.a @ h\nreturn a + drop_connect(p.R.a, 0.5) @ h",
        "p.R.a has different heads or drop",
    ),
    "projection_with_heads of two states": (
        "m = tanh(p.W.a @ x + heads(p.R.a, 2) @ h)\nreturn heads(p.P.h, 2) @ m, c + m",
        "p.P.h projects to the first state. Leave out its heads and drop_connect",
    ),
    "sum_of_a_number": ("return a_of(x, h, p) * functions.sum(2.0)", "the sum of 2.0 needs a value per unit"),
    "traced_rate": ("return dropout(a_of(x, h, p), p.rate)", "rate must be a number, not the parameter p.rate"),
    "two_alike": ("return p.W.a @ x * p.v.a * p.v_a", "p.v.a and p.v_a would both be called v_a"),
}  # fmt: skip


@pytest.fixture
def equations(request, tmp_path):
    """A function of one of EQUATIONS, in a file of its own, as its lines are shown."""
    states = "h, c" if request.param.endswith("two states") else "h"
    body = EQUATIONS[request.param][0].replace("\n", "\n    ")
    file = tmp_path / "equations.py"
    file.write_text(f"def equations(x, {states}, p):\n    {body}\n")
    namespace = {name: getattr(functions, name) for name in FUNCTIONS} | {"a_of": a_of, "functions": functions}
    namespace |= {"math": math, "np": np}
    if "torch." in body:
        namespace["torch"] = pytest.importorskip("torch")
    exec(compile(file.read_text(), file, "exec"), namespace)
    return namespace["equations"]


@pytest.mark.parametrize("equations, name", [(name, name) for name in EQUATIONS], ids=EQUATIONS, indirect=["equations"])
def test_message(equations, name):
    body, message, *shown = EQUATIONS[name]
    with pytest.raises(CellError, match=message) as caught:
        cell(equations)
    _, place, line = str(caught.value).split("\n")
    assert line.strip() == (shown or body.split("\n")[-1:])[0].strip()
    file = equations.__code__.co_filename
    assert re.fullmatch(rf'  File "{re.escape(str(file))}", line [1-4]', place)


def test_equations_have_at_most_5000_operations():
    def nested(count):
        def equations(x, h, p):
            a = p.W.a @ x
            for _ in range(count):
                a = numbarnn.tanh(a)
            return a

        return equations

    assert len(cell(nested(5000)).saved) == 4999  # and h itself
    with pytest.raises(CellError, match="5,001 operations per unit and step, but at most 5,000 are compiled"):
        cell(nested(5001))


def drawn_by_numpy():
    return np.random.rand()  # noqa: NPY002 - as users write it


drawing = np.random.default_rng
DRAWN = drawing(0)


@pytest.mark.parametrize(
    "function",
    (
        lambda x, h, p: p.W.a @ x + drawn_by_numpy() * h,
        lambda x, h, p: p.W.a @ x + DRAWN.normal(size=4) * h,
        lambda x, h, p: p.W.a @ x + np.random.default_rng().normal(size=(4, 4)) @ h,
        lambda x, h, p: (random.random() * p.R.a) @ h + p.W.a @ x,
        lambda x, h, p: p.W.a @ x + (p.R.a * DRAWN.normal(size=(4, 4))) @ h,
    ),
)
def test_random_numbers_of_the_equations_are_refused(function):
    """They would be those of the first run, at every step."""
    with pytest.raises(CellError, match=r"in one run and .* in the next, .* Draw outside and pass them in") as caught:
        cell(function)
    assert 'test_trace_errors.py", line' in str(caught.value)


def test_random_numbers_that_are_the_same_in_every_run_are_constants():
    noise = DRAWN.normal(size=4)
    cell(lambda x, h, p, noise=noise: p.W.a @ x + noise * h + np.nan * h)
    of_any_size = numbarnn.constant(lambda H: np.random.default_rng(0).normal(size=(H, H)))
    cell(lambda x, h, p: p.W.a @ x + of_any_size @ h + numbarnn.constant(lambda H: np.random.default_rng(1).normal(H)))


def seeded():
    return random.Random(0).random()


def seeded_first(x, h, p):
    np.random.seed(0)  # noqa: NPY002
    return p.W.a @ x + np.random.normal() * h  # noqa: NPY002


@pytest.mark.parametrize(
    "function",
    (
        lambda x, h, p: p.W.a @ x + np.random.default_rng(0).normal(size=4) * h,
        lambda x, h, p: p.W.a @ x + drawing(0).normal(size=(4, 4)) @ h,
        lambda x, h, p: p.W.a @ x + np.random.RandomState(0).normal() * h,
        lambda x, h, p: p.W.a @ x + seeded() * h,
        seeded_first,
    ),
)
def test_generators_that_the_equations_seed_are_refused(function):
    """They would give every step the same numbers."""
    with pytest.raises(CellError, match=r"the equations seed a generator .* Draw outside and pass them in") as caught:
        cell(function)
    assert "test_trace_errors.py" in str(caught.value) and re.search("Random|drawing|default|seed", str(caught.value))


@pytest.mark.parametrize(
    "function, message",
    (
        (lambda x, h, p: tanh(p.U * x + p.V @ h), "p.U, by its name a matrix, is multiplied element by element"),
        (lambda x, h, p: tanh(p.W @ x + p.V * h), "p.V, by its name .* left of @, p.V @ vector; .* p.diagonal"),
        (lambda x, h, p: tanh(p.w.a @ x + h * p.w.b), "p.w.b, by its name a matrix, is multiplied"),
        (lambda x, h, p: tanh(p.W @ x + p.R), "p.R, by its name a matrix, is added, .* p.R @ vector; .* p.bias"),
        (lambda x, h, p: (1 - tanh(p.W.a @ x - p.R.a)) * h, "p.R.a, by its name a matrix, is added"),
    ),
)
def test_a_matrix_of_which_at_may_be_forgotten_is_warned_of(function, message):
    """By its name it is one, but nothing else in the equations proves it."""
    with pytest.warns(UserWarning, match=message) as caught:
        cell(function)
    assert caught[0].filename == __file__ and caught[0].lineno == function.__code__.co_firstlineno
    assert "test_trace_errors.py" in str(caught[0].message)


def test_names_of_parameters_per_unit_are_not_warned_of():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cell(lambda x, h, p: tanh(p.B @ x + p.a * h + p.D))
        cell(lambda x, h, p: tanh(p.Dense.W @ x + p.Dense.peep * h + p.Dense.b))
        cell(lambda x, h, p: tanh(p.W.a @ x + p.u * h + p.A * sigmoid(h)))
        cell(lambda x, h, p: tanh(p.w @ x + p.v * h) * p.Gain)


def test_a_value_of_another_cell():
    kept = []

    @cell
    def first(x, h, p):
        kept.append(p.W.a @ x)
        return kept[0]

    with pytest.raises(CellError, match="a value of another cell"):
        cell(lambda x, h, p: h + kept[0])


def test_the_cure_is_named_before_a_function_of_numbarnn_has_been_used():
    """Those functions are loaded when the first of them is asked for."""
    program = """
        import numpy as np
        from numbarnn import cell

        try:
            cell(lambda x, h, p: np.tanh(p.W.a @ x))
        except ValueError as error:
            print(error)
        """
    assert "use numbarnn.tanh" in in_child(program)


@pytest.mark.parametrize("function", (lambda x, h, p: p._a * h, lambda x, h, p: p.W._a @ x))
def test_names_of_parameters_begin_with_letters(function):
    with pytest.raises(AttributeError, match=r"p.(W.)?_a: a parameter's name begins with a letter"):
        cell(function)


# ---------------------------------------------------------------------------------------------------------- signature
def no_states(x, p):
    return x


def no_parameters(x, h):
    return h


def any_arguments(x, *states, p):
    return states


def by_name_alone(x, h, *, p):
    return h


def no_default(x, h, p, rate):
    return p.W.a @ x * rate


@pytest.mark.parametrize("equations", (no_states, no_parameters, any_arguments, by_name_alone))
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


ONES = np.ones((2, 2))
OF_A_RATE = r"rate must be (a probability|a number) from 0"
ARGUMENTS = [
    *((lambda one=one: cell(one), TypeError, "cell takes a function of equ") for one in (3, "lstm", type(None))),
    (lambda: cell(save="all")(a_of), ValueError, "save must be 'gates' or 'minimal', not 'all'"),
    (lambda: leaky_relu(ONES, -1), ValueError, "must be a number from 0 on, not -1"),
    (lambda: elu(ONES, -1), ValueError, "must be a number from 0 on, not -1"),
    *((lambda one=one: dropout(ONES, one), ValueError, OF_A_RATE) for one in (1, 1.5, -0.1, np.nan)),
    (lambda: drop_connect(ONES, 1), ValueError, OF_A_RATE),
    (lambda: zoneout(ONES, ONES, 1.5), ValueError, OF_A_RATE),
    (lambda: dropout(ONES, "0.5"), TypeError, "rate must be a number, not '0.5'"),
    (lambda: drop_connect(ONES, None), TypeError, "rate must be a number, not None"),
    *(
        (lambda one=one: heads(ONES, one), ValueError, "an int of at least 1, the num")
        for one in (0, -2, 2.0, True, "2")
    ),
]


@pytest.mark.parametrize("call, error, message", ARGUMENTS)
def test_arguments_are_checked(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_errors_of_the_equations_pass():
    with pytest.raises(NameError, match="undefined"):
        cell(lambda x, h, p: undefined(h))  # noqa: F821


def test_numbers_of_numpy_are_constants():
    traced = cell(
        lambda x, h, p: np.float64(2) * h + np.float32(0.5) * (p.W.a @ x) ** np.int64(2) + clip(h, -1, np.array(1))
    )
    assert traced.forward((3.0,), (), (0.5,), Given())[0] == (6.0,)
    assert cell(lambda x, h, p: where(np.float64(1) < p.W.a @ x, h, 0)).forward((3.0,), (), (0.5,), Given())[0] == (
        0.5,
    )


def test_names_that_numbarnn_does_not_have():
    """The nearest ones are named; where nothing is alike, all are."""
    for name, like in {
        "gelu2": "numbarnn.gelu",
        "soft_max": "numbarnn.softmax",
        "logsofmax": "numbarnn.softmax",
    }.items():
        with pytest.raises(AttributeError, match=f"has no attribute '{name}'; did you mean .*{like}"):
            getattr(numbarnn, name)
    with pytest.raises(
        AttributeError, match=r"'max'; in equations write numbarnn.maximum\(a, b\) of two values; there"
    ):
        numbarnn.max  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'quux'; it has LSTM, GRU"):
        numbarnn.quux  # noqa: B018
