"""The library's cells once more, as loops over time in PyTorch: autograd gives every gradient.

Each step is written from its paper on (B, I) and (B, H) tensors, with PyTorch's own functions, and shares nothing with
numbarnn but the names of states and parameters. `p` maps names to tensors: "W.i" (H, I), "R.i" (H, H), "b.i" (H,).
Dimensions as in `numbarnn`.
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import sigmoid, tanh
from torch.nn.functional import elu, gelu, layer_norm, logsigmoid, mish, selu, softplus, softsign

LOOPS = {}  # name -> Loop
_distances = []


def kink_distance(run):
    """How near an argument of a function with a kink comes to it while run() runs."""
    _distances.clear()
    run()
    return min(_distances, default=float("inf"))


def with_kinks(function, *kinks):
    """A function of one tensor that notes how near its argument comes to its kinks."""

    def noting(a):
        _distances.extend(float((a.detach() - kink).abs().min()) for kink in kinks)
        return function(a)

    return noting


relu = with_kinks(torch.relu, 0)
leaky_relu = with_kinks(torch.nn.functional.leaky_relu, 0)
# (torch.nn.functional.hardsigmoid has its 1/6 in float32 in backward)
hardsigmoid = with_kinks(lambda a: torch.clamp(a / 6 + 0.5, 0, 1), -3, 3)


def maximum(a, b):
    """The greater one, noted as above."""
    _distances.append(float((a - b).detach().abs().min()))
    return torch.maximum(a, b)


@dataclass(frozen=True)
class Loop:
    """A step, the names of its states (the first is the output) and of its parameters.

    inputs      names of matrices (H, I)
    matrices    names of matrices (H, H), that of a projection too
    vectors     names of vectors (H,)
    heads       the matrices are this many blocks on the diagonal, (H, H / heads)
    """

    step: callable
    states: tuple[str, ...]
    inputs: tuple[str, ...]
    matrices: tuple[str, ...]
    per_unit: tuple[str, ...]
    heads: int = 1

    @property
    def parameters(self):
        """All their names."""
        return (*self.inputs, *self.matrices, *self.per_unit)

    def shapes(self, input_size, hidden):
        """Name -> shape of every parameter of one layer and direction."""
        return (
            dict.fromkeys(self.inputs, (hidden, input_size))
            | dict.fromkeys(self.matrices, (hidden, hidden // self.heads))
            | dict.fromkeys(self.per_unit, (hidden,))
        )

    def run(self, parameters, x, states):
        """One layer.

        Args:
            parameters: one dict per direction.
            x: (T, B, I).
            states: initial states, one (D, B, H) per name.

        Returns:
            y (T, B, D*H), and the final states in the form of the argument.
        """
        outputs, finals = [], []
        for direction, p in enumerate(parameters):
            state, ys = [part[direction] for part in states], []
            for x_t in x.flip(0) if direction else x:
                state = self.step(p, x_t, *state)
                ys.append(state[0])
            y = torch.stack(ys)
            outputs.append(y.flip(0) if direction else y)
            finals.append(state)
        return torch.cat(outputs, dim=-1), [torch.stack(parts) for parts in zip(*finals, strict=True)]


def loop(states, W="", R="", b="", per_unit="", name=None, P="", heads=1):
    """Decorator: list a step in LOOPS. Arguments are names, separated by blanks: W="i f" stands for W.i and W.f."""

    def register(step):
        def names(group, members):
            return tuple(f"{group}.{member}" for member in members.split())

        own = names("b", b) + tuple(per_unit.split())
        found = Loop(step, tuple(states.split()), names("W", W), names("R", R) + names("P", P), own, heads)
        LOOPS[name or step.__name__] = found
        return step

    return register


def into(p, gate, x, h):
    """W x + R h + b of a gate."""
    return x @ p[f"W.{gate}"].T + h @ p[f"R.{gate}"].T + p[f"b.{gate}"]


# --------------------------------------------------------------------------------------------------- the built-in cells
@loop("h c", W="i f g o", R="i f g o", b="i f g o")
def lstm(p, x, h, c):
    c = sigmoid(into(p, "f", x, h)) * c + sigmoid(into(p, "i", x, h)) * tanh(into(p, "g", x, h))
    return sigmoid(into(p, "o", x, h)) * tanh(c), c


@loop("h", W="r z n", R="r z n", b="r z n", per_unit="b.q")
def gru(p, x, h):
    r, z = sigmoid(into(p, "r", x, h)), sigmoid(into(p, "z", x, h))
    n = tanh(x @ p["W.n"].T + p["b.n"] + r * (h @ p["R.n"].T + p["b.q"]))
    return ((1 - z) * n + z * h,)


@loop("h", W="r z n", R="r z n", b="r z n")
def gru_reset_before(p, x, h):
    r, z = sigmoid(into(p, "r", x, h)), sigmoid(into(p, "z", x, h))
    return ((1 - z) * tanh(into(p, "n", x, r * h)) + z * h,)


@loop("h", W="h", R="h", b="h")
def rnn_tanh(p, x, h):
    return (tanh(into(p, "h", x, h)),)


@loop("h", W="h", R="h", b="h")
def rnn_relu(p, x, h):
    return (relu(into(p, "h", x, h)),)


# ------------------------------------------------------------------------------------------------- variants of the LSTM
@loop("h c", W="i f g o", R="i f g o", b="i f g o", per_unit="peep_i peep_f peep_o")
def peephole_lstm(p, x, h, c):
    i = sigmoid(into(p, "i", x, h) + p["peep_i"] * c)
    f = sigmoid(into(p, "f", x, h) + p["peep_f"] * c)
    c = f * c + i * tanh(into(p, "g", x, h))
    return sigmoid(into(p, "o", x, h) + p["peep_o"] * c) * tanh(c), c


def any_lstm(p, x, h, c, gate, candidate, output):
    """The LSTM with functions of the gates, of g, and of c."""
    c = gate(into(p, "f", x, h)) * c + gate(into(p, "i", x, h)) * candidate(into(p, "g", x, h))
    return gate(into(p, "o", x, h)) * output(c), c


ACTIVATIONS = {  # those of lstm_with that the tests take: gates, candidate, output
    "hard_sigmoid tanh softsign": (hardsigmoid, tanh, softsign),
    "sigmoid relu elu": (sigmoid, relu, elu),
    "sigmoid softplus leaky_relu": (sigmoid, softplus, leaky_relu),
    "sigmoid gelu mish": (sigmoid, gelu, mish),
    "normal_cdf selu erf": (torch.special.ndtr, with_kinks(selu, 0), torch.erf),
}
for activations, functions in ACTIVATIONS.items():
    step = partial(any_lstm, **dict(zip(("gate", "candidate", "output"), functions, strict=True)))
    loop("h c", W="i f g o", R="i f g o", b="i f g o", name=f"lstm_with {activations}")(step)


@loop("h c", W="i g o", R="i g o", b="i g o")
def coupled_lstm(p, x, h, c):
    i = sigmoid(into(p, "i", x, h))
    c = (1 - i) * c + i * tanh(into(p, "g", x, h))
    return sigmoid(into(p, "o", x, h)) * tanh(c), c


@loop("h c", W="i f g o", R="i f g o", b="i f g o", P="h")
def projected_lstm(p, x, h, c):
    m, c = lstm(p, x, h, c)
    return m @ p["P.h"].T, c


def normalised(*values, gains):
    """Layer normalisation of all values together, each times its gain."""
    together = torch.cat(values, -1)
    parts = layer_norm(together, together.shape[-1:]).chunk(len(values), -1)
    return [gain * part for gain, part in zip(gains, parts, strict=True)]


def normalised_gates(p, x, h, gates):
    """What stands for W x and for R h of each gate."""
    of_x = normalised(*(x @ p[f"W.{g}"].T for g in gates), gains=[p[f"gain_x.{g}"] for g in gates])
    of_h = normalised(*(h @ p[f"R.{g}"].T for g in gates), gains=[p[f"gain_h.{g}"] for g in gates])
    return of_x, of_h


GAINS = "gain_x.{0} gain_x.{1} gain_x.{2} gain_h.{0} gain_h.{1} gain_h.{2} "


@loop("h c", W="i f g o", R="i f g o", b="i f g o", per_unit=GAINS.format(*"ifg") + "gain_x.o gain_h.o gain.c shift.c")
def layer_norm_lstm(p, x, h, c):
    of_x, of_h = normalised_gates(p, x, h, "ifgo")
    i, f, g, o = (a + b + p[f"b.{gate}"] for a, b, gate in zip(of_x, of_h, "ifgo", strict=True))
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    (normed,) = normalised(c, gains=[p["gain.c"]])
    return sigmoid(o) * tanh(normed + p["shift.c"]), c


@loop("h", W="r z n", R="r z n", b="r z n q", per_unit=GAINS.format(*"rzn"))
def layer_norm_gru(p, x, h):
    (x_r, x_z, x_n), (h_r, h_z, h_n) = normalised_gates(p, x, h, "rzn")
    r, z = sigmoid(x_r + h_r + p["b.r"]), sigmoid(x_z + h_z + p["b.z"])
    return (z * h + (1 - z) * tanh(x_n + p["b.n"] + r * (h_n + p["b.q"])),)


@loop("h c", W="m i f g o", R="m i f g o", b="i f g o")
def multiplicative_lstm(p, x, h, c):
    m = (x @ p["W.m"].T) * (h @ p["R.m"].T)
    return lstm(p, x, m, c)


@loop("h", W="f c", R="f c", b="f c")
def janet(p, x, h, beta=1.0):
    s = into(p, "f", x, h)
    return (sigmoid(s) * h + (1 - sigmoid(s - beta)) * tanh(into(p, "c", x, h)),)


@loop("h c n m", W="z i f o", R="z i f o", b="z i f o")
def slstm(p, x, h, c, n, m):
    z, o = tanh(into(p, "z", x, h)), sigmoid(into(p, "o", x, h))
    log_i, log_f = into(p, "i", x, h), logsigmoid(into(p, "f", x, h))
    m, before = maximum(log_f + m, log_i), m
    i, f = torch.exp(log_i - m), torch.exp(log_f + before - m)
    c, n = f * c + i * z, f * n + i
    return o * c / n, c, n, m


# -------------------------------------------------------------------------------------------------- variants of the GRU
@loop("h", W="z h", R="z h", b="z h")
def li_gru(p, x, h):
    z = sigmoid(into(p, "z", x, h))
    return (z * h + (1 - z) * relu(into(p, "h", x, h)),)


@loop("h", W="f h", R="f h", b="f h")
def minimal_gated_unit(p, x, h):
    f = sigmoid(into(p, "f", x, h))
    return ((1 - f) * h + f * tanh(into(p, "h", x, f * h)),)


@loop("h", W="c g", R="c g", b="c g")
def ugrnn(p, x, h):
    g = sigmoid(into(p, "g", x, h))
    return (g * h + (1 - g) * tanh(into(p, "c", x, h)),)


@loop("h", W="a", R="a", b="z h", per_unit="zeta nu")
def fast_grnn(p, x, h):
    a = x @ p["W.a"].T + h @ p["R.a"].T
    z = sigmoid(a + p["b.z"])
    return ((sigmoid(p["zeta"]) * (1 - z) + sigmoid(p["nu"])) * tanh(a + p["b.h"]) + z * h,)


@loop("h c", W="c i f", R="i f", b="i f")
def additive_network(p, x, h, c):
    i, f = sigmoid(into(p, "i", x, h)), sigmoid(into(p, "f", x, h))
    c = i * (x @ p["W.c"].T) + f * c
    return tanh(c), c


# ----------------------------------------------------------------------------------------------------- several products
def highway(p, x, h, depth):
    """The recurrent highway network's step, with coupled gates: micro-steps 1 to depth, x in the first."""
    for k in range(1, depth + 1):
        a, b = (h @ p[f"R.{gate}{k}"].T + p[f"b.{gate}{k}"] for gate in "ht")
        if k == 1:
            a, b = a + x @ p["W.h"].T, b + x @ p["W.t"].T
        t = sigmoid(b)
        h = tanh(a) * t + h * (1 - t)
    return (h,)


for depth in (1, 2, 3):
    names = " ".join(f"h{k} t{k}" for k in range(1, depth + 1))
    loop("h", W="h t", R=names, b=names, name=f"recurrent_highway {depth}")(partial(highway, depth=depth))


@loop("y z", W="z", R="y z", b="z")
def cornn(p, x, y, z, dt=0.1, gamma=1.0, epsilon=1.0):
    drive = tanh(y @ p["R.y"].T + z @ p["R.z"].T + x @ p["W.z"].T + p["b.z"])
    z = z + dt * (drive - gamma * y - epsilon * z)
    return y + dt * z, z


@loop("y z", W="slow fast z y", R="slow fast z y", b="slow fast z y")
def lem(p, x, y, z, dt=0.5):
    slow, fast = dt * sigmoid(into(p, "slow", x, y)), dt * sigmoid(into(p, "fast", x, y))
    z = (1 - slow) * z + slow * tanh(into(p, "z", x, y))
    return (1 - fast) * y + fast * tanh(into(p, "y", x, z)), z


# --------------------------------------------------------------------------------------------- light, without an R
@loop("h", W="h", b="h", per_unit="u")
def ind_rnn(p, x, h):
    return (relu(x @ p["W.h"].T + p["u"] * h + p["b.h"]),)


@loop("h c", W="x f r y", b="f r", per_unit="v.f v.r")
def sru(p, x, h, c):
    f = sigmoid(x @ p["W.f"].T + p["v.f"] * c + p["b.f"])
    r = sigmoid(x @ p["W.r"].T + p["v.r"] * c + p["b.r"])
    c = f * c + (1 - f) * (x @ p["W.x"].T)
    return r * c + (1 - r) * (x @ p["W.y"].T), c


@loop("h c", W="z f o", b="z f o")
def qrnn(p, x, h, c):
    z, f, o = (x @ p[f"W.{gate}"].T + p[f"b.{gate}"] for gate in "zfo")
    c = sigmoid(f) * c + (1 - sigmoid(f)) * tanh(z)
    return sigmoid(o) * c, c


@loop("h", W="z h", b="z h")
def min_gru(p, x, h):
    z = sigmoid(x @ p["W.z"].T + p["b.z"])
    return ((1 - z) * h + z * (x @ p["W.h"].T + p["b.h"]),)


@loop("h", W="f i h", b="f i h")
def min_lstm(p, x, h):
    f, i = (sigmoid(x @ p[f"W.{gate}"].T + p[f"b.{gate}"]) for gate in "fi")
    return (f / (f + i) * h + i / (f + i) * (x @ p["W.h"].T + p["b.h"]),)


# ----------------------------------------------------------------------- with random numbers of units, (B, H) each
def keep(mask, new, old):
    return mask * new + (1 - mask) * old


@loop("h c", W="i f g o", R="i f g o", b="i f g o", name="lstm at random")
def lstm_at_random(p, x, h, c, noise):
    of_g, of_c, of_h = noise
    i, f, g, o = (into(p, gate, x, h) for gate in "ifgo")
    c = keep(of_c, sigmoid(f) * c + sigmoid(i) * tanh(g) * of_g, c)
    return keep(of_h, sigmoid(o) * tanh(c), h), c


@loop("h", W="r z n", R="r z n", b="r z n", per_unit="b.q", name="gru at random")
def gru_at_random(p, x, h, noise):
    of_n, of_h = noise
    r, z = sigmoid(into(p, "r", x, h)), sigmoid(into(p, "z", x, h))
    n = tanh(x @ p["W.n"].T + p["b.n"] + r * (h @ p["R.n"].T + p["b.q"]))
    return (keep(of_h, (1 - z) * n * of_n + z * h, h),)


@loop("h c", W="i f g o", R="i f g o", b="i f g o", name="layer_norm_lstm at random",
      per_unit=GAINS.format(*"ifg") + "gain_x.o gain_h.o gain.c shift.c")  # fmt: skip
def layer_norm_lstm_at_random(p, x, h, c, noise):
    new, c = layer_norm_lstm(p, x, h, c)
    return keep(noise[0], new, h), c


@loop("h", W="r z n", R="r z n", b="r z n q", per_unit=GAINS.format(*"rzn"), name="layer_norm_gru at random")
def layer_norm_gru_at_random(p, x, h, noise):
    (new,) = layer_norm_gru(p, x, h)
    return (keep(noise[0], new, h),)
