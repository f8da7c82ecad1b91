"""What equations become: gates, products, vectors, biases, saved values, source, gradients; and `show`."""

import inspect
from pathlib import Path

import numpy as np
import pytest

import numbarnn as nr
from child import in_child
from numbarnn import cells
from numbarnn.cells import Cell, library
from numbarnn.cells.definition import Given
from numbarnn.cells.functions import exp, sigmoid, softplus, tanh, where
from numbarnn.cells.tracing import cell, show
from numbarnn.cells.tracing.saving import CHOICES
from numpy_engine import NumpyEngine
from trace_cases import FUNCTIONS

# name -> gates of ax, gates of ah that multiply h, those of each further product, vectors, bias, saved
STRUCTURE = {
    "every_kinked_function": ("a b", "a", [], "", "input", "a tanh_b tanh_1"),
    "chain_of_products": ("a d", "a", ["b", "c", "d"], "", "recurrent", "a b tanh_1"),
    "product_of_a_product": ("a", "c", ["b"], "", "none", ""),
    "products_of_other_states": ("m", "", ["m", "c"], "u", "none", "tanh_c"),
    "delayed_output": ("c", "c", [], "", "none", ""),
    "one_value_twice": ("c", "c", [], "", "none", ""),
    "forgetful": ("a", "a", [], "", "none", "a"),
    "only_x": ("a", "", [], "", "none", ""),
    "exponential_average": ("a", "", [], "", "input", "target target_2 target_3"),
    "gates_in_another_order": ("a b", "a b", [], "", "input", "a tanh_b"),
    "two_biases": ("r n", "r n", [], "", "double", "r ah_n"),
    "recurrent_biases": ("a", "a b", [], "", "recurrent", "ax_a ah_a"),
    "one_sum_used_twice": ("a", "a", [], "b_z b_h", "none", "z tanh_1"),
}


@pytest.mark.parametrize("name", STRUCTURE)
def test_structure(name):
    traced = cell(FUNCTIONS[name])
    gates, recurrent, stages, per_unit, bias, saved = STRUCTURE[name]
    assert (traced.gates, traced.recurrent) == (tuple(gates.split()), tuple(recurrent.split()))
    assert [" ".join(stage.gates) for stage in traced.stages] == stages
    assert (traced.per_unit, traced.bias, traced.saved) == (tuple(per_unit.split()), bias, tuple(saved.split()))
    assert traced.general and traced.name == name and traced.states == tuple(inspect.signature(
        FUNCTIONS[name]).parameters)[1 : 1 + traced.num_states]  # fmt: skip


# ------------------------------------------------------------------------------------------------------------- saving
FEWEST = {
    "every_smooth_function": (14, 2),
    "exponential_average": (3, 1),
    "one_sum_used_twice": (2, 1),
    "many_functions_of_few_values": (7, 2),
}


@pytest.mark.parametrize("name", FEWEST)
def test_minimal_saves_fewer_values(name):
    numbers = tuple(cell(FUNCTIONS[name], save=save).num_saved for save in ("gates", "minimal"))
    assert numbers == FEWEST[name]


def test_minimal_never_saves_more():
    for function in [*FUNCTIONS.values(), library.slstm, library.lem, library.recurrent_highway(3)]:
        assert cell(function, save="minimal").num_saved <= cell(function, save="gates").num_saved


def test_known_cells_save_what_is_saved_by_hand():
    for name in cells.CELLS:
        derived = getattr(library, name)
        assert derived.num_saved == cells.CELLS[name].num_saved and derived.gates == cells.CELLS[name].gates
        assert derived.same_gradient == cells.CELLS[name].same_gradient
    assert library.lstm.saved == ("i", "f", "g", "o") and library.gru.saved == ("r", "z", "ah_n", "n")


def test_what_states_tell_is_not_saved():
    """Neither the new c nor a function of it, nor one of vectors and old states alone."""

    @cell
    def traced(x, h, c, p):
        scale = exp(p.s) * sigmoid(c)
        c_new = c + p.W.c @ x
        return softplus(c_new) * scale, c_new

    assert traced.saved == ()


def test_comparisons_are_not_saved():
    @cell
    def traced(x, h, p):
        return where(tanh(p.W.a @ x) > h, 2 * h, h * h)

    assert traced.saved == ("a",) and "mask_1 = a > h" in inspect.getsource(traced.backward)


# ------------------------------------------------------------------------------------------------------------- biases
def test_a_bias_of_one_gate_alone_is_a_row_of_biases():
    """As it is where every gate has one: its place does not depend on them."""

    @cell
    def traced(x, h, p):
        return tanh(p.W.a @ x + p.b.a) + tanh(p.W.b @ x + p.R.b @ h)

    assert (traced.bias, traced.per_unit, traced.rows["bias_ih"]) == ("input", (), ("b.a",))


def test_a_bias_that_is_used_elsewhere_stays_a_vector():
    @cell
    def traced(x, h, p):
        return tanh(p.W.a @ x + p.b) * p.b

    assert (traced.bias, traced.per_unit) == ("none", ("b",))


def test_names_of_gates_are_the_last_parts_where_these_differ():
    @cell
    def traced(x, h, p):
        return tanh(p.W.a @ x + p.V.a @ x + p.W.b @ x + p.R @ h)

    assert traced.gates == ("W_a", "V_a", "b") and traced.recurrent == ("R",)


# ------------------------------------------------------------------------------------------------------------- source
def test_source_is_python_that_one_can_read():
    source = inspect.getsource(library.peephole_lstm.forward)
    assert source in library.peephole_lstm.source
    assert "    # c_new = f * c + i * tanh(p.W.g @ x + p.R.g @ h + p.b.g)\n    g = tanh(ax_g + ah_g)\n" in source
    assert "    c_new = f * c + i * g\n" in source and "return (h_new, c_new), (i, f, g, o)\n" in source
    backward = inspect.getsource(library.peephole_lstm.backward)
    assert "    d_ax_o = d_o * d_sigmoid(o)\n    d_peep_o = d_ax_o * c_new\n" in backward
    assert max(map(len, library.slstm.source.split("\n"))) <= 120


def test_gradients_of_mixed_values_are_factored():
    """(1 - z) n + z h: dz is dh (h - n)."""
    assert "d_z = d_h_after * (h - n)\n" in library.gru.source


def test_constants_are_named_after_hyperparameters():
    assert library.cornn.source.startswith("DT = 0.1\n")
    assert "BETA = 0.25\n" in cell(library.janet, beta=0.25).source
    assert "LOW = -0.4\n" in cell(FUNCTIONS["every_kinked_function"]).source


def test_infinite_constants():
    @cell(limit=float("inf"))
    def traced(x, h, p, limit):
        return where(p.W.a @ x < limit, h, limit)

    assert traced.forward((1.0,), (), (2.0,), Given())[0] == (2.0,)


def test_variables_do_not_hide_functions():
    @cell
    def traced(x, h, p):
        sigmoid_, tanh_ = p.W.a @ x, p.W.b @ x
        exp, ax, lambda_, ONE = tanh(sigmoid_) * 3, tanh(tanh_), h - 7, h + 3
        return sigmoid(exp * ax) + softplus(lambda_ * ONE) * ONE * exp

    (found,) = traced.forward((0.3, 0.4), (), (0.5,), Given())[0]
    a, b = 3 * tanh(0.3), tanh(0.4)
    assert found == pytest.approx(sigmoid(a * b) + softplus((0.5 - 7) * 3.5) * 3.5 * a, rel=1e-14)


def test_the_same_text_in_every_process():
    """Caches of compiled code are keyed by it."""
    program = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parents[1] / "support")!r})
        from trace_cases import FUNCTIONS
        from numbarnn.cells.tracing import cell
        print("".join(cell(one, save=save).source for one in FUNCTIONS.values() for save in ("gates", "minimal")))
    """
    texts = {in_child(program, PYTHONHASHSEED=seed) for seed in ("1", "2")}
    assert len(texts) == 1 and len(texts.pop()) > 1000


# ------------------------------------------------------------------------------------------------------------ options
def test_cell_with_arguments_and_without():
    def light(x, h, p, rate=0.5, power=2):
        return h + rate * (tanh(p.W.a @ x) ** power - h)

    plain, other = cell(light), cell(rate=0.25, save="minimal")(light)
    again = cell(other, power=3, name="third")
    assert [c.name for c in (plain, other, again)] == ["light", "light_rate_0.25", "third"]
    assert cell(lambda x, h, p, f: f(p.W.a @ x), f=tanh).name == "cell_f_tanh"
    assert [c.hyperparameters for c in (plain, other, again)] == [
        {"rate": 0.5, "power": 2}, {"rate": 0.25, "power": 2}, {"rate": 0.25, "power": 3},
    ]  # fmt: skip
    assert [c.forward((1.0,), (), (2.0,), Given())[0][0] for c in (plain, other, again)] == pytest.approx(
        [2 + rate * (tanh(1.0) ** power - 2) for rate, power in ((0.5, 2), (0.25, 2), (0.25, 3))]
    )


def test_a_lambda_has_equations_too():
    traced = cell(lambda x, h, p: tanh(p.W.a @ x + p.R.a @ h))
    assert (
        traced.name == "cell"
        and "lambda" in traced.equations
        and isinstance(traced, Cell)
        and traced.recurrent == ("a",)
    )


def test_a_cell_within_another_ones_equations():
    inner = cell(lambda x, h, p: tanh(p.W.a @ x + p.R.a @ h), name="inner")
    with pytest.raises(TypeError, match=r"cell inner is not a function: .* write inner.function\(x, h, ..., p\)"):
        cell(lambda x, h, p: 0.5 * inner(x, h, p))
    outer = cell(lambda x, h, p: 0.5 * inner.function(x, h, p))
    assert outer.forward((1.0,), (2.0,), (0.0,), Given())[0][0] == pytest.approx(0.5 * tanh(3.0))


# --------------------------------------------------------------------------------------------------------------- show
def test_show(capsys):
    text = show(library.gru)
    assert capsys.readouterr().out == text + "\n"
    for line in (
        "cell gru, states h",
        "    r = sigmoid(p.W.r @ x + R.r @ h + p.b.r)",
        "weight_ih   (3H, I)    r: p.W.r, z: p.W.z, n: p.W.n",
        "bias_ih     (3H,)      r: p.b.r, z: p.b.z, n: p.b.n",
        "bias_hh     (1H,)      n: p.b.q",
        "by name: W.r W.z W.n (H, I); R.r R.z R.n (H, H); b.r b.z b.n b.q (H,)",
        "4 values per step and unit; bytes: 16 in float32, 8 in float16",
        "def gru_backward(saved, state, new_state, d_state, d_v, d_sums, given):",
    ):
        assert line in text


def test_show_stages_and_hyperparameters():
    text = show(cell(FUNCTIONS["chain_of_products"]))
    assert (
        "products with h: a\n    pointwise: the vector v (chain_of_products_stage0_forward); products with v: b\n"
        in text
    )
    assert "equations (dt=0.1, gamma=1.0, epsilon=1.0)" in show(library.cornn)
    assert "nothing: states before and after" in show(library.rnn_tanh)


def test_show_says_which_parameters_are_not_used():
    @cell
    def forgot(x, h, p):
        sigmoid(p.W.o @ x + p.b.o)
        return tanh(p.W.a @ x + p.b.a)

    assert forgot.gates == ("a",) and forgot.bias == "input"
    assert "does not depend on them: p.W.o, p.b.o\n" in show(forgot)


@pytest.mark.parametrize("hand_written", cells.CELLS.values(), ids=cells.CELLS)
def test_show_of_a_hand_written_cell(hand_written):
    text = show(hand_written)
    assert inspect.getsource(hand_written.backward).split("\n")[0] in text and " ".join(hand_written.gates) in text


def test_show_takes_cells():
    with pytest.raises(TypeError, match=r"show takes a Cell, such as numbarnn\.cell makes, got 'lstm'"):
        show("lstm")


# ------------------------------------------------------------------------------------------------------------ gradients
MORE = {"slstm": library.slstm, "highway": library.recurrent_highway(3), "lem": library.lem, "gru": library.gru}
CELLS = {
    f"{name}-{save}": cell(function, save=save) for save in CHOICES for name, function in (FUNCTIONS | MORE).items()
}


@pytest.mark.parametrize("traced", CELLS.values(), ids=CELLS)
def test_derived_functions_equal_the_equations(traced):
    """By NumPy's engine, which calls them as they are; it draws nothing."""
    assert nr.gradcheck(traced, 2, 3, device="cpu" if traced.noise else NumpyEngine()).ok


@nr.cell
def dividing_by_x(x, h, p):
    return nr.tanh(p.W.a @ x + p.R.a @ (h / (p.W.d @ x)))


def test_what_a_cell_divides_by_is_not_zero_beyond_a_sequence():
    """R's gradient is that of a call of the longer sequence alone and one of the shorter one."""
    layer, x = nr.RNN(dividing_by_x, 3, 4, dtype="float64", device="cpu", seed=1), np.ones((4, 2, 3))
    y, _, tape = layer.forward(x, lengths=[4, 2])
    found, expected = layer.backward(tape, np.ones_like(y)).weights, 0
    for b, steps in enumerate([4, 2]):
        y, _, tape = layer.forward(x[:steps, b : b + 1])
        expected = expected + layer.backward(tape, np.ones_like(y)).weights
    np.testing.assert_allclose(found, expected, rtol=1e-12)
