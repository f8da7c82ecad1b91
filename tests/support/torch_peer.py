"""PyTorch's layers on a problem of problems.py, and how far their errors bound ours."""

import numpy as np

from comparing import error
from numbarnn import cells
from numbarnn.common.precision import is_half

FEW_ROUNDINGS = 4  # eps: where both err by less than this, which errs less is luck


def layer(torch, problem, device="cpu"):
    """torch.nn's layer with the problem's parameters."""
    case = problem.case
    options = dict(bias=case.bias in (True, "double"), batch_first=case.batch_first)
    if case.proj_size:
        options["proj_size"] = case.proj_size
    made = module(torch, case.cell, case.hidden, case.directions, case.dtype, case.I, device=device, **options)
    made.load_state_dict({name: tensor(torch, value, case, device) for name, value in problem.parameters.items()})
    return made


def module(torch, cell, hidden=(5,), D=1, dtype="float32", I=4, **options):  # noqa: E741
    """torch.nn's layers of equal sizes with random weights."""
    torch.manual_seed(1)
    if cell.startswith("rnn_"):
        options["nonlinearity"] = cell.removeprefix("rnn_")
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(cell, torch.nn.RNN)
    return kind(I, hidden[0], len(hidden), bidirectional=D == 2, dtype=getattr(torch, dtype), **options)


def tensor(torch, array, case, device):
    """An array as PyTorch's tensor of the case's dtype; 0 where NaN stands in padding."""
    wide = np.nan_to_num(np.asarray(array, "float32" if is_half(case.dtype) else case.dtype))
    return torch.tensor(wide, device=device).to(getattr(torch, case.dtype))


def values(torch, problem, device="cpu"):
    """What PyTorch computes, name -> NumPy array, as `running.train` returns it; sizes are equal, dy is given.
    Sequences of different lengths, of 1 or more, are packed for it; dx is padded with zeros."""
    case, rnn = problem.case, torch.nn.utils.rnn
    model, has_c = layer(torch, problem, device), case.has_c
    x, *state = (
        tensor(torch, array, case, device).requires_grad_()
        for array in (problem.sequences(problem.x), problem.h, problem.c) if array is not None
    )  # fmt: skip
    given = x
    if case.lengths is not None:
        given = rnn.pack_padded_sequence(x, torch.tensor(case.lengths), enforce_sorted=False)
    y, final = model(given, (tuple(state) if has_c else state[0]) if state else None)
    if case.lengths is not None:
        y, _ = rnn.pad_packed_sequence(y, padding_value=case.padding_value, total_length=case.T)
    outputs = [y, *(final if has_c else [final])]
    pairs = zip(outputs, [problem.sequences(problem.dy), problem.dhy, problem.dcy], strict=False)
    given = [(output, tensor(torch, d, case, device)) for output, d in pairs if d is not None]
    torch.autograd.backward(*zip(*given, strict=True))
    found = dict(zip(("y", "hy", "cy"), [output.detach() for output in outputs], strict=False))
    found |= dict(zip(("dx", "dhx", "dcx"), [one.grad for one in (x, *state)], strict=False))
    found |= {f"d{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: (value.double() if is_half(case.dtype) else value).cpu().numpy() for name, value in found.items()}


def floor(case, name):
    """The error that is allowed where PyTorch's is smaller still; of 16 bits one eps.

    dW and dR are BLAS products over n = T B terms, dx and dhx over n = G H: in which order these are added is the BLAS
    library's affair. PyTorch's own float64 error of dx changes by a factor of 2.5 with the kernels its OpenBLAS takes
    (OPENBLAS_CORETYPE); the two packages differ by up to sqrt(n) / 4 eps. All else is this package's own.
    """
    if is_half(case.dtype):
        return case.eps
    gates = cells.get(case.cell).num_gates
    terms = case.T * case.B if name.startswith("dweight") else gates * max(case.hidden) if name in ("dx", "dhx") else 0
    return case.eps * (FEW_ROUNDINGS + terms**0.5 / 4)


def assert_at_most_twice_torchs_error(case, ours, theirs, expected):
    """Every quantity is at most twice as far from float64 as PyTorch's, or within the floor."""
    assert set(theirs) == set(ours)
    problems = []
    for name, value in ours.items():
        found, torchs = error(value, expected[name]), error(theirs[name], expected[name])
        if not found <= max(2 * torchs, floor(case, name)):
            problems.append(f"{name}: {found / case.eps:.1f} eps, PyTorch {torchs / case.eps:.1f} eps")
    assert not problems, f"{case}: {', '.join(problems)}"
