"""Problems for the general cells of general_cells.py: every quantity of a layer against PyTorch's autograd in float64.

    check_general(GeneralCase("blend", T=7, hidden=(33, 5), directions=2, lengths=(7, 0, 3)), "cpu", "stepwise")

Cases and limits are those of option_cases.py; only what is expected needs PyTorch. What the engines cut into gates,
stages and products is one equation there, and what they do with step_mask of steps is `torch.where`.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

import numbarnn
from general_cells import GENERAL, STEPS
from half_cases import EPS
from helpers import assert_same_bits, on_host
from numbarnn.common.precision import numpy_dtype
from option_cases import BIASES, OptionCase, OptionProblem, assert_matches, nonsense_filled, plain, to_engine


@dataclass(frozen=True)
class GeneralCase(OptionCase):
    """One problem; the cell is one of `GENERAL`."""

    @property
    def definition(self):
        """The Cell."""
        return GENERAL[self.cell]

    @property
    def has_c(self):
        """`GeneralProblem` makes the states besides h."""
        return False

    @property
    def limit(self):
        """As in option_cases.py. In halves one more rounding: of what a stage's product multiplies. In float64 PyTorch
        errs as much as we do."""
        if self.dtype in EPS:
            return super().limit + self.eps / 2 * len(self.definition.stages)
        return super().limit * (2 if self.dtype == "float64" else 1)

    def parameter_shapes(self):
        cell = self.definition
        for layer, hidden in enumerate(self.hidden):
            G, A = cell.num_gates * hidden, cell.num_ah * hidden
            shapes = {"weight_ih": (G, self.input_size(layer)), "weight_hh": (A, hidden)}
            shapes |= {kind: ({"bias_ih": G, "bias_hh": A}[kind],) for kind in BIASES[self.bias]}
            shapes |= dict.fromkeys(cell.per_unit, (hidden,))
            if layer == 0 and self.input_mode == "skip":
                del shapes["weight_ih"]
            for suffix in ("", "_reverse")[: self.directions]:
                yield from ((f"{kind}_l{layer}{suffix}", layer, shape) for kind, shape in shapes.items() if shape[0])

    def layer(self, device="cpu", **options):
        options |= {"bias": self.bias, "input_mode": self.input_mode, "batch_first": self.batch_first}
        options |= {"dropout": self.dropout, "bidirectional": self.directions == 2}
        sizes = (self.hidden[0], len(self.hidden)) if len(set(self.hidden)) == 1 else (list(self.hidden),)
        return numbarnn.RNN(
            self.definition, self.input_size(0), *sizes, dtype=self.dtype, device=device, **{"seed": 1} | options
        )


class GeneralProblem(OptionProblem):
    """As `OptionProblem`, with as many states as the cell has.

    Attributes:
        states, d_states: one list per state, h first, of one (D, B, H) per layer; None where the case gives none.
    """

    def __init__(self, case, seed=0):
        numpy_dtype(case.dtype)  # so that NumPy knows its name
        super().__init__(case, seed)
        rng = np.random.default_rng([seed, 1])

        def private():
            shapes = [(case.directions, case.B, size) for size in case.hidden]
            others = range(case.definition.num_private)
            return [[rng.standard_normal(shape).astype(case.dtype) for shape in shapes] for _ in others]

        self.states = [self.h, *private()] if case.state else None
        self.d_states = [self.dhy, *private()]

    def state_argument(self, states):
        """As layers take it: one array or list per state, alone if there is but one."""
        if states is None:
            return None
        parts = tuple(map(self.joined, states))
        return parts if len(parts) > 1 else parts[0]

    def named(self, states, form):
        """{form.format(name): value} of a state as layers return it."""
        names = self.case.definition.states
        parts = states if len(names) > 1 else (states,)
        return {form.format(name): part for name, part in zip(names, parts, strict=True)}

    # ------------------------------------------------------------------------------------------------- what is expected
    def expected(self, masks=None, exact=False):
        """Name -> what autograd computes in float64, in the form in which layers return it."""
        import torch

        case = self.case

        def tensor(array):
            return torch.tensor(np.nan_to_num(array.astype(np.float64)), requires_grad=True)

        parameters = {name: tensor(array) for name, array in self.parameters.items()}
        zeros = [[np.zeros((case.directions, case.B, size)) for size in case.hidden]] * case.definition.num_states
        states = [[tensor(part) for part in parts] for parts in (self.states or zeros)]
        x = tensor(self.x)
        y, finals = x, []
        for layer in range(len(case.hidden)):
            if masks is not None and layer:
                y = y * torch.tensor(masks[layer - 1].astype(np.float64))
            initial = [part[layer] for part in states]
            parts = [self.run(parameters, layer, direction, y, initial) for direction in range(case.directions)]
            y = torch.cat([outputs for outputs, _ in parts], dim=2)
            finals.append([torch.stack(ends) for ends in zip(*(ends for _, ends in parts), strict=True)])
        finals = [list(parts) for parts in zip(*finals, strict=True)]
        weights = [self.dy, *(part for parts in self.d_states for part in parts)]
        outputs = [y, *(part for parts in finals for part in parts)]
        weights = [torch.tensor(np.nan_to_num(weight.astype(np.float64))) for weight in weights]
        sum((output * weight).sum() for output, weight in zip(outputs, weights, strict=True)).backward()

        def gradients(parts):
            return [(torch.zeros_like(part) if part.grad is None else part.grad).numpy() for part in parts]

        filled = np.where(self.padding[..., None], case.padding_value, y.detach().numpy())
        ends = self.state_argument([[part.detach().numpy() for part in parts] for parts in finals])
        values = {"y": plain(self.sequences(filled)), **self.named(ends, "{}y")}
        values |= {"dx": plain(self.sequences(x.grad.numpy()))}
        values |= self.named(self.state_argument([gradients(parts) for parts in states]), "d{}x")
        return values | {f"d{name}": parameter.grad.numpy() for name, parameter in parameters.items()}

    def run(self, parameters, layer, direction, inputs, initial):
        """One layer and direction: (outputs (T, B, H), 0 in padding; final states (B, H))."""
        import torch

        case, suffix = self.case, f"_l{layer}{'_reverse' if direction else ''}"
        cell, H = case.definition, case.hidden[layer]
        own = {name.removesuffix(suffix): value for name, value in parameters.items() if name.endswith(suffix)}
        active = torch.tensor(~self.padding)[..., None]
        cut = torch.zeros_like(active) if self.resets is None else torch.tensor(self.resets)[..., None] & active
        cut = torch.cat([cut, torch.zeros_like(cut[:1])])[direction:]  # backward the next time's, which passes it on

        def gate(kind, vector, number):
            rows = slice(number * H, (number + 1) * H)
            found = vector @ own[f"weight_{kind}"][rows].T if f"weight_{kind}" in own else vector
            return found + own[f"bias_{kind}"][rows] if f"bias_{kind}" in own else found

        states, outputs = [part[direction] for part in initial], [None] * case.T
        per_unit = [own[name] for name in cell.per_unit]
        for t in reversed(range(case.T)) if direction else range(case.T):
            product = lambda n, t=t: gate("ih", inputs[t], n), lambda n, vector: gate("hh", vector, n)
            new = STEPS[case.cell](product, [torch.where(cut[t], 0.0, state) for state in states], per_unit)
            states = [torch.where(active[t], *pair) for pair in zip(new, states, strict=True)]
            outputs[t] = torch.where(active[t], states[0], 0.0)
        return torch.stack(outputs), states


@lru_cache(maxsize=64)
def make_problem(case):
    """A problem for the case, always the same."""
    return GeneralProblem(case)


# -------------------------------------------------------------------------------------------------------------- running
def infer(layer, problem):
    """Name -> result of an inference call."""
    engine = layer.engine
    with nonsense_filled(engine):
        x, state = to_engine(engine, problem.sequences(problem.x)), problem.state_argument(problem.states)
        y, state = layer(x, to_engine(engine, state), **problem.options())
        return {"y": engine.to_host(plain(y))} | problem.named(on_host(engine, state), "{}y")


def train(layer, problem):
    """(name -> result of forward and backward, the dropout masks)."""
    engine = layer.engine
    with nonsense_filled(engine):
        x, dy = (to_engine(engine, problem.sequences(array)) for array in (problem.x, problem.dy))
        state, d_state = (to_engine(engine, problem.state_argument(s)) for s in (problem.states, problem.d_states))
        y, state, tape = layer.forward(x, state, **problem.options())
        values = {"y": engine.to_host(plain(y))} | problem.named(on_host(engine, state), "{}y")
        masks = layer.dropout_masks(tape)
        found = layer.backward(tape, dy, d_state)
        values |= {"dx": engine.to_host(plain(found.x))} | problem.named(on_host(engine, found.state), "d{}x")
        values |= {f"d{name}": engine.to_host(value) for name, value in found.params.items()}
    return values, masks


def check_general(case, device, schedule, calls=2):
    """Inference and training of a case by a schedule, each quantity against autograd; later calls: the same bits."""
    problem = make_problem(case)
    layer = problem.layer(device, schedule=schedule)
    outputs, (values, masks) = infer(layer, problem), train(layer, problem)
    expected = problem.expected(masks if case.dropout else None)
    assert_matches(case, values, expected, "training")
    if case.dropout:
        expected = problem.expected()
    assert_matches(case, outputs, {name: expected[name] for name in outputs}, "inference")
    for call in range(1, calls):
        assert_same_bits(infer(layer, problem), outputs, f"inference, call {call}")
        layer.training_calls = 0  # the same dropout masks
        assert_same_bits(train(layer, problem)[0], values, f"training, call {call}")
