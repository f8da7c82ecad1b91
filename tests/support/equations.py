"""What cells must compute that `numbarnn.reference` does not know: their own equations on PyTorch tensors, run step by
step in float64 by cell_loops.py; autograd gives every gradient.

"at random" has some of the library with random numbers. What the engines cut into gates, stages and products is one
equation there, and what they do with lengths and resets is `torch.where`. PyTorch is loaded when something is computed.
"""

from dataclasses import replace
from functools import cache, partial

import numpy as np

import numbarnn as nr
from general_cells import EQUATIONS, WRITTEN
from numbarnn.cells import functions, library
from numbarnn.cells.tracing import cell as traced


# Cells as papers write them, of functions that the library's do without.
@nr.cell
def softmax_lstm(x, h, c, p, temperature=0.5):
    """LSTM whose input gates share what they let in, and whose output sees c relative to that of the other units."""
    i = nr.softmax((p.W.i @ x + p.R.i @ h + p.b.i) / temperature)
    f = nr.exp(nr.log_sigmoid(p.W.f @ x + p.R.f @ h + p.b.f))
    g = nr.gelu(p.W.g @ x + p.R.g @ h + p.b.g, approximate="tanh")
    c_new = f * c + 3 * i * g
    return nr.tanh(c_new - 0.5 * nr.logsumexp(p.sharpness * c_new)), c_new


@nr.cell
def truncated_gru(x, h, p):
    """GRU whose gates do not pass gradients to the state before: stop_gradient in front of a product."""
    before = nr.stop_gradient(h)
    r = nr.sigmoid(p.W.r @ x + p.R.r @ before + p.b.r)
    z = nr.sigmoid(p.W.z @ x + p.R.z @ before + p.b.z)
    n = nr.tanh(p.W.n @ x + p.R.n @ (r * h) + p.b.n)
    return (1 - z) * n + z * h


@nr.cell
def waving(x, h, p, t=nr.step):
    """A rhythm of each unit's own, known to all by the number of the step."""
    return nr.tanh(p.W.a @ x + p.R.a @ h + p.b.a + nr.sin(p.speed * t))


phased_lstm_half_open = nr.cell(library.phased_lstm, open_ratio=0.5, name="phased_lstm_half_open")
OWN = {one.name: one for one in (softmax_lstm, library.lsnn, truncated_gru, waving, phased_lstm_half_open)}

ACTIVATIONS = ("hard_sigmoid tanh softsign", "sigmoid relu elu", "sigmoid softplus leaky_relu",
               "sigmoid gelu mish", "normal_cdf selu erf")  # fmt: skip
AT_RANDOM = {  # name in the library -> what is drawn there
    "lstm": dict(zoneout_h=0.3, zoneout_c=0.2, dropout_g=0.25, drop_R=0.4, name="lstm_at_random"),
    "gru": dict(zoneout_h=0.4, dropout_n=0.3, drop_R=0.5, name="gru_at_random"),
    "layer_norm_lstm": dict(zoneout_h=0.3, drop_R=0.2),
    "layer_norm_gru": dict(zoneout_h=0.3, drop_R=0.2),
}
BUILT_IN_TOO = ("lstm", "gru", "gru_reset_before", "rnn_tanh", "rnn_relu")  # traced ones are "library lstm" here
LIBRARY = (
    *(f"library {name}" for name in BUILT_IN_TOO), "peephole_lstm", *(f"lstm_with {names}" for names in ACTIVATIONS),
    "coupled_lstm", "projected_lstm", "layer_norm_lstm", "layer_norm_gru", "multiplicative_lstm", "janet", "slstm",
    "li_gru", "minimal_gated_unit", "ugrnn", "fast_grnn", "additive_network", "recurrent_highway 1",
    "recurrent_highway 2", "recurrent_highway 3", "cornn", "lem", "ind_rnn", "sru", "qrnn", "min_gru", "min_lstm",
    "on_lstm", "phased_lstm", *OWN,
)  # fmt: skip


def kind(name):
    """ "written" by hand, or of the "library"."""
    return "written" if name in WRITTEN else "library"


@cache
def cell_of(name, heads=1):
    """The Cell of a name; `heads`: of a library's cell that has them."""
    if name in WRITTEN:
        return WRITTEN[name]
    if name.startswith("lstm_with "):
        return library.lstm_with(*(getattr(functions, one) for one in name.split()[1:]))
    if name.startswith("recurrent_highway "):
        return library.recurrent_highway(int(name.split()[1]))
    if name.endswith(" at random"):
        name = name.removesuffix(" at random")
        return traced(getattr(library, name), **AT_RANDOM[name])
    found = OWN.get(name) or getattr(library, name.removeprefix("library "))
    return found if heads == 1 else traced(found, heads=heads)


@cache
def weighted(name, heads, rates, projected):
    """A cell of the library with these; always the same, as its kernels are kept with it. One name for all of a kind:
    the CPU's loops are compiled for each name, and do not differ."""
    return replace(getattr(library, name), name=f"own_{name}", heads=heads, drop_connect=rates, projected=projected)


# ------------------------------------------------------------------------------------------ parameters by other names
def place(cell, name):
    """Where a parameter of the equations is among the layer's: (kind, its number of H rows); all rows: (kind, None)."""
    for key, names in cell.rows.items():
        if name in names:
            return key, None if key == "weight_hr" else names.index(name)
    return name.replace(".", "_"), None


def own_parameters(parameters, layer, direction):
    """Those of a layer and direction, without the names' endings."""
    suffix = f"_l{layer}{'_reverse' if direction else ''}"
    return {name.removesuffix(suffix): value for name, value in parameters.items() if name.endswith(suffix)}


def by_names_of_equations(cell, equations, own, hidden):
    """One layer's and direction's parameters, under the names in the equations: "W.i" (H, I)."""
    found = {}
    for name in equations.parameters.shapes():
        key, number = place(cell, name)
        found[name] = own[key] if number is None else own[key][number * hidden : (number + 1) * hidden]
    return found


# -------------------------------------------------------------------------------------------------------- steps
def step_by_gates(cell):
    """A step's new states, of a cell's equations: a matrix' product is one of a gate, with its bias.

    product     (x, r): x(gate) is W of the gate times the step's input, r(gate, vector) R times a vector; with biases
    states      (B, H) each, h first
    vectors     (H,) each
    """

    def step(product, states, vectors, noise=()):
        from cell_loops import Eager, run_equations

        class Gates(Eager):
            def multiply(self, term, right, options=None):
                group, _, gate = term.data.partition(".")
                if group == "W":
                    return self.value(product[0](cell.gates.index(gate)))
                return self.value(product[1](cell.gates_of_ah.index(gate), self.tensor(right)))

        per_unit = dict(zip(cell.per_unit, vectors, strict=True))
        return run_equations(Gates(per_unit, states[0].shape[-1], noise), cell, states[0], states)

    return step


def step_of_written(case, own, hidden):
    """A function of a step (x_t, states, noise) -> new states, of a cell written by hand."""
    step = step_by_gates(EQUATIONS[case.cell])
    vectors = [own[name] for name in case.definition.per_unit]

    def gate(direction, number, vector):
        rows = slice(number * hidden, (number + 1) * hidden)
        found = vector @ own[f"weight_{direction}"][rows].T if f"weight_{direction}" in own else vector
        return found + own[f"bias_{direction}"][rows] if f"bias_{direction}" in own else found

    def run(x, states, noise):
        product = partial(gate, "ih", vector=x), partial(gate, "hh")
        new = step(product, states, vectors, *([noise] if case.definition.noise else []))
        return (new[0] @ own["weight_hr"].T, *new[1:]) if "weight_hr" in own else new

    return run


def step_of_library(case, own, hidden):
    """Likewise of the library's cells; whose input is not multiplied, has a W of 1."""
    import torch

    from cell_loops import Eager, run_equations

    cell, equations = case.definition, cell_of(case.cell)
    if "weight_ih" not in own:
        own["weight_ih"] = torch.eye(hidden, dtype=torch.float64).repeat(cell.num_gates, 1)
    parameters = by_names_of_equations(cell, equations, own, hidden)
    return lambda x, states, noise: run_equations(Eager(parameters, hidden, noise), equations, x, states)


class Run:
    """A problem's tensors in float64. Attributes: x, parameters, states as given; y, finals as computed."""

    def __init__(self, problem, drawn=None):
        self.problem, self.case, self.drawn = problem, problem.case, drawn
        self.parameters = {name: self.tensor(array) for name, array in problem.parameters.items()}
        self.x, self.states = self.tensor(problem.x), []
        for k, parts in enumerate(problem.states):
            sizes = self.case.outputs if k == 0 else self.case.hidden
            zeros = [np.zeros((self.case.directions, self.case.B, size)) for size in sizes]
            self.states.append([self.tensor(part) for part in (parts or zeros)])

    @staticmethod
    def tensor(array):
        import torch

        return torch.tensor(np.nan_to_num(np.asarray(array, np.float64)), requires_grad=True)

    def forward(self):
        """Compute y (T, B, D*P), 0 in padding, and final states, in the form of `states`."""
        import torch

        case, y, finals = self.case, self.x, []
        for layer in range(len(case.hidden)):
            if self.drawn and case.dropout and layer:
                y = y * self.tensor(self.drawn.masks[layer - 1]).detach()
            parts = [self.one_direction(layer, direction, y) for direction in range(case.directions)]
            y = torch.cat([outputs for outputs, _ in parts], dim=2)
            finals.append([torch.stack(ends) for ends in zip(*(ends for _, ends in parts), strict=True)])
        self.y, self.finals = y, [list(parts) for parts in zip(*finals, strict=True)]
        return self

    def one_direction(self, layer, direction, inputs):
        """(outputs (T, B, P), final states)."""
        import torch

        case, problem, H = self.case, self.problem, self.case.hidden[layer]
        cell, own = case.definition, own_parameters(self.parameters, layer, direction)
        name = f"weight_hh_l{layer}{'_reverse' if direction else ''}"
        if self.drawn and name in self.drawn.drops:
            own["weight_hh"] = own["weight_hh"] * self.tensor(self.drawn.drops[name]).detach()
        if case.heads > 1:
            gates = own["weight_hh"].chunk(cell.num_ah)
            own["weight_hh"] = torch.cat([torch.block_diag(*gate.chunk(case.heads)) for gate in gates])
        step = (step_of_library if kind(case.cell) == "library" else step_of_written)(case, own, H)
        active = torch.tensor(~problem.padding)[..., None]
        cut = torch.zeros_like(active) if problem.resets is None else torch.tensor(problem.resets)[..., None] & active
        cut = torch.cat([cut, torch.zeros_like(cut[:1])])[direction:]  # backward the next time's, which passes it on
        states, outputs = [part[layer][direction] for part in self.states], [None] * case.T
        for t in reversed(range(case.T)) if direction else range(case.T):
            before = [torch.where(cut[t], 0.0, state) for state in states]
            new = step(inputs[t], before, self.noise(layer, direction, t))
            states = [torch.where(active[t], *pair) for pair in zip(new, states, strict=True)]
            outputs[t] = torch.where(active[t], states[0], 0.0)
        return torch.stack(outputs), states

    def noise(self, layer, direction, t):
        """The random numbers of a step, (B, H) each, or their means."""
        kinds = self.case.definition.noise
        if self.drawn and kinds:
            return self.tensor(self.drawn.noise[layer][direction, t]).detach().unbind(1)
        return [self.tensor(np.full((self.case.B, self.case.hidden[layer]), one.mean)).detach() for one in kinds]

    def backward(self):
        """Let autograd find the gradients of x, states and parameters."""
        given = [self.problem.dy, *(part for parts in self.problem.d_states for part in (parts or []))]
        wanted = [(state, d) for state, d in zip(self.finals, self.problem.d_states, strict=True) if d is not None]
        outputs = [self.y, *(part for parts, _ in wanted for part in parts)]
        pairs = [pair for pair in zip(outputs, given, strict=True) if pair[1] is not None]
        sum((output * self.tensor(weight).detach()).sum() for output, weight in pairs).backward()
        return self


def gradient(tensor):
    """As NumPy; zeros of what nothing depends on."""
    return np.zeros(tensor.shape) if tensor.grad is None else tensor.grad.numpy()


def autograd(problem, drawn=None):
    """What `Problem.expected` wants to know: (y, final states, dx, gradients of initial states, of parameters)."""
    run = Run(problem, drawn).forward().backward()
    y = np.where(problem.padding[..., None], problem.case.padding_value, run.y.detach().numpy())
    finals, d_states = (
        [[form(part) for part in parts] for parts in states]
        for states, form in ((run.finals, lambda part: part.detach().numpy()), (run.states, gradient))
    )
    return y, finals, gradient(run.x), d_states, {name: gradient(p) for name, p in run.parameters.items()}


def kink_distance(problem):
    """How near an argument of a function with a kink comes to it."""
    if kind(problem.case.cell) != "library":
        return np.inf
    from cell_loops import kink_distance as of_loop

    return of_loop(lambda: Run(problem).forward())
