"""Cells with a memory of another size than h: a matrix that is written and read, and a window of the past."""

import numpy as np

from numbarnn.cells.functions import elu, initial, sigmoid, sized, tanh
from numbarnn.cells.tracing import cell


@cell
def delta_rule(x, h, S, p, size=8):
    """Fast weights S, a matrix (size, size), that are corrected towards v where k points: h = S_new q; the hidden size
    is `size`.

    Schlag, Irie and Schmidhuber 2021, arXiv:2102.11174, (23) and (24), with φ(k) = elu(k) + 1 over its sum. Here S is a
    state of size² units, row after row: constant matrices repeat a vector along its rows or columns, and sum up rows.

    Args:
        size: of keys and of values.
    """
    S, one, ones = sized(S, size * size), np.eye(size), np.ones((size, 1))
    of_row, of_column = np.kron(one, ones), np.kron(ones, one)  # (size², size): v_i, and k_j, at (i, j)
    row_sum = of_row @ of_row.T  # at (i, j) the sum of row i
    k = elu((of_column @ p.W.k) @ x) + 1
    q = elu((of_column @ p.W.q) @ x) + 1
    k, q = k / (row_sum @ k), q / (row_sum @ q)
    beta = sigmoid((of_row @ p.W.beta) @ x)
    S_new = S + beta * ((of_row @ p.W.v) @ x - row_sum @ (S * k)) * k  # (23), (24)
    return of_row.T @ (S_new * q), S_new


def _legendre(order, theta):
    """A (order, order) and B (order, 1) of a step of m' = A m + B u, of (2), with u held during it."""
    i, j = np.arange(order)[:, None], np.arange(order)
    both = np.zeros((order + 1, order + 1))
    both[:order, :order] = np.where(i < j, -1.0, (-1.0) ** (i - j + 1)) * (2 * i + 1) / theta
    both[:order, order:] = (-1.0) ** i * (2 * i + 1) / theta
    halvings = max(0, int(np.ceil(np.log2(np.linalg.norm(both)))) + 4)  # e^M is (e^(M / 2^n))^(2^n)
    small = both / 2.0**halvings
    term = power = np.eye(order + 1)
    for number in range(1, 16):
        term = term @ small / number
        power = power + term
    power = np.linalg.matrix_power(power, 2**halvings)
    return power[:order, :order], power[:order, order:]


@cell
def lmu(x, h, m, p, order=16, theta=64.0):
    """Legendre memory unit: m holds the last `theta` steps of a number u, by as many Legendre polynomials as `order`.

    Voelker, Kajić and Eliasmith 2019 (NeurIPS), (1) to (8), with A and B discretised by zero-order hold.

    Args:
        order: size of the memory. theta: steps that it reaches back.
    """
    A, B = _legendre(order, theta)
    m = sized(m, order)
    u = (B @ p.e.x) @ x + (B @ p.e.h) @ h  # B times (6), without m
    m_new = (A + B @ initial(p.e.m, 0)) @ m + u  # (4)
    return tanh(p.W.h @ x + p.R.h @ h + p.M @ m_new), m_new  # (7)
