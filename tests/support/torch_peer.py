"""PyTorch's layers on a problem of helpers.py or option_cases.py, and how far their errors bound ours."""

from helpers import OUTPUTS, error
from numbarnn import cells

FEW_ROUNDINGS = 4  # eps: where both err by less than this, which errs less is luck


def layer(torch, problem, device="cpu"):
    """torch.nn's layer with the problem's parameters."""
    case = problem.case
    options = dict(bias=case.bias in (True, "double"), bidirectional=case.directions == 2, batch_first=case.batch_first)
    if getattr(case, "proj_size", 0):
        options["proj_size"] = case.proj_size
    if case.cell.startswith("rnn_"):
        options["nonlinearity"] = case.cell.removeprefix("rnn_")
    make = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(case.cell, torch.nn.RNN)
    dtype = getattr(torch, case.dtype)
    made = make(case.I, case.hidden[0], len(case.hidden), dtype=dtype, device=device, **options)
    made.load_state_dict({name: torch.tensor(value) for name, value in problem.parameters.items()})
    return made


def values(torch, problem, device="cpu"):
    """What PyTorch computes, name -> NumPy array, as `helpers.train` returns it; equal sizes, everything given."""

    def tensor(array):
        return torch.tensor(array, device=device)

    model, has_c = layer(torch, problem, device), problem.case.has_c
    given = [tensor(array).requires_grad_() for array in (problem.x, problem.h, problem.c) if array is not None]
    y, state = model(given[0], tuple(given[1:]) if has_c else given[1])
    outputs = [y, *(state if has_c else [state])]
    gradients = [problem.dy, problem.dhy, problem.dcy][: len(outputs)]
    torch.autograd.backward(outputs, [tensor(gradient) for gradient in gradients])
    found = dict(zip(OUTPUTS, [output.detach() for output in outputs], strict=False))
    found |= dict(zip(("dx", "dhx", "dcx"), [one.grad for one in given], strict=False))
    found |= {f"d{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: value.cpu().numpy() for name, value in found.items()}


def option_values(torch, problem):
    """As `values`, for a problem of option_cases.py with lengths of 1 or more (packed for PyTorch), without the options
    that torch.nn has not. y and dx are padded, with zeros."""
    case, lengths = problem.case, torch.tensor(problem.case.lengths)
    padding = torch.tensor(problem.padding)[:, :, None]
    model = layer(torch, problem)
    x, h, c = (
        None if array is None else torch.tensor(array).requires_grad_()
        for array in (problem.x, problem.joined(problem.h), problem.joined(problem.c))
    )
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.where(padding, 0.0, x), lengths, enforce_sorted=False)
    y, state = model(packed, (h, c) if case.has_c else h)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=case.T)
    outputs = [y, *(state if case.has_c else [state])]
    gradients = [torch.tensor(problem.joined(part)) for part in (problem.dhy, problem.dcy)[: len(outputs) - 1]]
    torch.autograd.backward(outputs, [torch.where(padding, 0.0, torch.tensor(problem.dy)), *gradients])
    found = dict(zip(OUTPUTS, [output.detach() for output in outputs], strict=False))
    found |= dict(zip(("dx", "dhx", "dcx"), [one.grad for one in (x, h, c) if one is not None], strict=False))
    found |= {f"d{name}": parameter.grad for name, parameter in model.named_parameters()}
    return {name: value.numpy() for name, value in found.items()}


def floor(case, name):
    """The error that is allowed where PyTorch's is smaller still.

    dW and dR are BLAS products over n = T B terms, dx and dhx over n = G H: in which order these are added is the BLAS
    library's affair. PyTorch's own float64 error of dx changes by a factor of 2.5 with the kernels its OpenBLAS takes
    (OPENBLAS_CORETYPE); the two packages differ by up to sqrt(n) / 4 eps. All else is this package's own.
    """
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
