"""Problems in float16 and bfloat16: helpers.py's comparison, with a limit from the eps of what is stored.

The reference computes in float64 with the same rounded x, weights and states. What is rounded on the way is what is
stored, by eps / 2 of its size each: x Wᵀ, h, what the cell saves, gradients of pre-activations and of layers' inputs,
and at last the results. All between is float32's, hundreds of times finer. So

    limit = eps (STORED / 2 + sqrt(n) / 2)              n: the longest sum, max(I_k + H, T B)

with four roundings on the way of a number through a step, and for the sum of n rounded terms, none much larger than 1,
as many independent errors of eps / 2. Over all cases here the largest error seen is 0.5 of its limit.
"""

from dataclasses import dataclass

import numpy as np

from helpers import OUTPUTS, Case, error
from numbarnn.common.precision import HALVES, numpy_dtype

EPS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
STORED = 4  # x Wᵀ, what is saved or h, the pre-activation's gradient, the result

for _dtype in HALVES:
    numpy_dtype(_dtype)  # NumPy knows the name "bfloat16" from here on


@dataclass(frozen=True)
class HalfCase(Case):
    """A `Case` whose dtype has 16 bits."""

    dtype: str = "float16"

    @property
    def eps(self):
        return EPS[self.dtype]

    @property
    def limit(self):
        widest = max(self.input_size(layer) + hidden for layer, hidden in enumerate(self.hidden))
        return self.eps * (STORED + max(widest, self.T * self.B) ** 0.5) / 2


def cases():
    """Each cell in both dtypes: sizes of one unit and of several blocks, one step, layers, directions, dropout. Few and
    small ones for the ReLU, as many units cannot all keep away from its kink by some of these eps."""
    for dtype in HALVES:
        for cell in ("lstm", "gru", "rnn_tanh"):
            yield HalfCase(cell, dtype=dtype, T=1, B=1, hidden=(1,))
            yield HalfCase(cell, dtype=dtype, T=7, hidden=(33,), bias=False)
            yield HalfCase(cell, dtype=dtype, T=5, hidden=(5, 9), directions=2)
            yield HalfCase(cell, dtype=dtype, T=3, hidden=(5, 3, 4), dropout=0.4, batch_first=True)
            yield HalfCase(cell, dtype=dtype, T=3, hidden=(5, 5), state=False, given=("dy",))
            yield HalfCase(cell, dtype=dtype, T=3, hidden=(5,), given=("dhy", "dcy"))
        yield HalfCase("rnn_relu", dtype=dtype, T=2, B=1, hidden=(3,))
        yield HalfCase("rnn_relu", dtype=dtype, T=1, B=1, hidden=(2, 2))


def peer_cases():
    """Those that PyTorch computes too."""
    for dtype in HALVES:
        for cell in ("lstm", "gru"):
            yield HalfCase(cell, dtype=dtype, hidden=(33,))
            yield HalfCase(cell, dtype=dtype, T=10, hidden=(9, 9), directions=2)


# ----------------------------------------------------------------------------------------------------------- PyTorch
FLOOR = 1  # eps: where two rounded numbers err by less, which errs less is luck


def assert_at_most_twice_torchs_error(problem, ours, theirs):
    """Every quantity is at most twice as far from float64 as PyTorch's in the same dtype, or within the floor."""
    case, expected, problems = problem.case, problem.expected(), []
    assert list(theirs) == list(ours)
    for name, value in ours.items():
        found, torchs = error(value, expected[name]) / case.eps, error(theirs[name], expected[name]) / case.eps
        if not found <= max(2 * torchs, FLOOR):
            problems.append(f"{name}: {found:.2f} eps, PyTorch {torchs:.2f} eps")
    assert not problems, f"{case}: {', '.join(problems)}"


def torch_values(torch, problem):
    """What PyTorch computes in the case's dtype on the CPU: name, as `helpers.train` has it -> float64 array."""
    case, dtype = problem.case, getattr(torch, problem.case.dtype)

    def tensor(array):
        return torch.tensor(np.asarray(array, np.float32)).to(dtype)

    make = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}[case.cell]
    model = make(case.I, case.hidden[0], len(case.hidden), dtype=dtype, bidirectional=case.directions == 2)
    model.load_state_dict({name: tensor(value) for name, value in problem.parameters.items()})
    given = [tensor(array).requires_grad_() for array in (problem.x, problem.h, problem.c) if array is not None]
    y, state = model(given[0], tuple(given[1:]) if case.has_c else given[1])
    outputs = [y, *(state if case.has_c else [state])]
    gradients = [problem.dy, problem.dhy, problem.dcy][: len(outputs)]
    torch.autograd.backward(outputs, [tensor(gradient) for gradient in gradients])
    found = dict(zip(OUTPUTS, [output.detach() for output in outputs], strict=False))
    found |= dict(zip(("dx", "dhx", "dcx"), [one.grad for one in given], strict=False))
    found |= {f"d{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: value.double().numpy() for name, value in found.items()}
