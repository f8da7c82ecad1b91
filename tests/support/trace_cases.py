"""Cells written to be hard to trace."""

from numbarnn.cells.functions import (  # isort: skip
    clip, cos, dropout, elu, exp, hard_sigmoid, hard_tanh, layer_norm, leaky_relu, log, maximum, mean, minimum, relu,
    sigmoid, sin, softplus, softsign, sqrt, sum, tanh, where, zoneout,
)  # fmt: skip

FUNCTIONS = {}


def case(function):
    """Register equations by their name."""
    FUNCTIONS[function.__name__] = function
    return function


@case
def every_smooth_function(x, h, c, p):
    a = p.W.a @ x + p.R.a @ h
    b = p.W.b @ x + p.R.b @ h + p.u * c
    d = softplus(a) + elu(b, 0.7) + sin(a) * cos(b) + exp(-a * a) + 1 / (2 + sin(b))
    e = log(1.5 + tanh(a)) + sqrt(1 + b**2) + softsign(d) - leaky_relu(a, 0.3) / 3
    f = 2**e + (1.2 + tanh(b)) ** sigmoid(p.v) + (1 + a * a) ** -1.5 - b**3
    return tanh(f), sigmoid(c + d) - e


@case
def every_kinked_function(x, h, c, p, low=-0.4):
    a = p.W.a @ x + p.R.a @ h + p.b.a
    b = tanh(p.W.b @ x) - c
    d = maximum(a, b) + 2 * minimum(a, 0.3 * b) + abs(a - b) + relu(b)
    e = clip(a, low, 0.5) + hard_tanh(2 * b) - hard_sigmoid(d) + clip(d, c - 1, c + 1)
    return where(d > e, tanh(d * e), where(a <= b, a, b - d)), relu(e) - 0.5 * where(b < 0, e, d)


@case
def chain_of_products(x, h, p):
    a = tanh(p.W.a @ x + p.R.a @ h)
    b = sigmoid(p.R.b @ a + p.R.c @ (a * h) + p.b)
    return a * tanh(p.R.d @ (b - a) + p.W.d @ x) + h * b


@case
def product_of_a_product(x, h, p):
    return tanh(p.R.b @ (p.W.a @ x) + p.R.c @ h)


@case
def products_of_other_states(x, h, c, m, p):
    """None of the output itself."""
    m_new = tanh(p.W.m @ x + p.R.m @ c)
    return c * p.u + m_new, tanh(p.R.c @ m) + h, m_new


@case
def delayed_output(x, h, c, p):
    return tanh(p.W.c @ x + p.R.c @ h), h


@case
def one_value_twice(x, h, c, p):
    y = tanh(p.W.c @ x + p.R.c @ h + 0.5 * c)
    return y, y


@case
def forgetful(x, h, c, p):
    """A state that is not used, and one that becomes a constant."""
    return p.W.a @ x - 1 + tanh(p.R.a @ h), 0 * h


@case
def only_x(x, h, p):
    return p.W.a @ x


@case
def exponential_average(x, h, p, rate=0.1, steps=3):
    """Loops and Python functions on the way."""
    a = p.W.a @ x + p.b

    def towards(value, target):
        return value + rate * (target - value)

    for _ in range(steps):
        h = towards(h, tanh(a - h))
    return h


@case
def gates_in_another_order(x, h, p):
    b = p.R.b @ h
    a = sigmoid(p.W.a @ x + p.R.a @ h + p.b.a)
    return a * tanh(p.W.b @ x + b + p.b.b) + (1 - a) * h


@case
def two_biases(x, h, p):
    r = sigmoid(p.W.r @ x + p.b_w.r + p.R.r @ h + p.b_r.r)
    return tanh(p.W.n @ x + p.b_w.n + r * (p.R.n @ h + p.b_r.n))


@case
def recurrent_biases(x, h, p):
    return tanh((p.W.a @ x) * (p.R.a @ h + p.b.a) - 0.5 * (p.R.b @ h - 1 + p.b.b))


@case
def one_sum_used_twice(x, h, p):
    a = p.W.a @ x + p.R.a @ h
    z = sigmoid(a + p.b.z)
    return z * tanh(2 * a - p.b.h) + (1 - z) * h


@case
def many_functions_of_few_values(x, h, c, p):
    a = p.W.a @ x + p.R.a @ h
    b = p.W.b @ x + p.R.b @ h
    s = sigmoid(a) * tanh(b) + sigmoid(a - 1) * tanh(b + 1) + softplus(a) * exp(-b * b)
    return tanh(s), 0.5 * c + sin(s)


@case
def normalized(x, h, c, p):
    """Several values together, and one; a sum that a state becomes."""
    a, b = layer_norm(p.W.a @ x + p.R.a @ h, p.W.b @ x)
    c_new = sigmoid(p.gain * a + p.b.a) * c + tanh(b)
    return tanh(layer_norm(c_new, eps=0.1) * p.scale + h), c_new


@case
def sums_around_products(x, h, p):
    """Sums of what a product was made of, products of what sums were made of, and a product of a sum."""
    share = exp(p.W.a @ x)
    share = share / sum(share)
    v = tanh(p.R.a @ (share * h)) - mean(h * h)
    w = p.R.b @ v + p.R.c @ (v - mean(v))
    return tanh(w + p.R.d @ sum(w * share) + p.R.e @ h)


@case
def a_sum_as_state(x, h, n, p):
    n_new = 0.5 * n + mean(abs(p.W.a @ x) + p.u)
    return tanh(p.R.a @ h) / (1 + abs(n_new)) + 3 * sum(p.u) * mean(0.25) + sum(0.1 + 0 * h), n_new


@case
def random_numbers(x, h, c, p):
    g = dropout(tanh(p.W.g @ x + p.R.g @ h), 0.25)
    c_new = zoneout(0.5 * c + g, c, 0.125)
    return zoneout(dropout(c_new, 0.5, each_step=False), h, 0.1), c_new
