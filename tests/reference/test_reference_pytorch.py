"""The float64 reference against PyTorch in float64: torch.nn's layers, whole, packed and cut into pieces, and for the
options that torch.nn has not a loop of PyTorch operations whose gradients are autograd's."""

from itertools import pairwise

import numpy as np
import pytest

from reference_problem import BIASES, CELLS, GATES, Problem, gradients_by_name, relative_error

torch = pytest.importorskip("torch")

# Sums of up to about a hundred products, over at most 7 steps: both sides err by a few times 1e-15, relative
# to the largest element.
PYTORCH_LIMIT = 1e-12


def assert_agrees(problem, outputs, leaves):
    """The reference's outputs and gradients against PyTorch's: [y, *hy, *cy], and the leaves of its graph by name."""
    result = problem.forward()
    for actual, expected in zip([result.y, *result.hy, *(result.cy or [])], outputs, strict=True):
        assert relative_error(actual, expected.detach().numpy()) < PYTORCH_LIMIT
    weights = [problem.dy, *problem.dhy, *(problem.dcy or [])]
    sum((torch.from_numpy(dv) * v).sum() for dv, v in zip(weights, outputs, strict=True)).backward()
    gradients = gradients_by_name(problem.backward(result))
    assert gradients.keys() == leaves.keys()
    for name, leaf in leaves.items():
        assert relative_error(gradients[name], leaf.grad.numpy()) < PYTORCH_LIMIT, name


def make_leaves(problem):
    """Every array that has a gradient as a tensor, by name."""
    return {name: torch.tensor(array, requires_grad=True) for name, array in problem.inputs().items()}


def state_kinds(problem):
    return ["h0", "c0"] if problem.cell == "lstm" else ["h0"]


# ------------------------------------------------------------------------------------------------ torch.nn's layers
def torch_module(problem, input_size, hidden_size, num_layers=1, bidirectional=False):
    options = dict(bias=problem.bias == "double", bidirectional=bidirectional, dtype=torch.float64)
    if problem.cell.startswith("rnn"):
        options["nonlinearity"] = problem.cell.removeprefix("rnn_")
    if problem.proj:
        options["proj_size"] = problem.proj
    kind = {"lstm": torch.nn.LSTM, "gru": torch.nn.GRU}.get(problem.cell, torch.nn.RNN)
    return kind(input_size, hidden_size, num_layers, **options)


def run_modules(problem, leaves):
    """A problem by torch.nn: [y, *hy, *cy]. Sequences of unequal length are packed.

    A stack that torch.nn has is one module; with unequal sizes or given masks it is one module per layer.
    """
    L, D, H = len(problem.H), problem.D, problem.H
    lengths, padding = problem.options.get("lengths"), problem.options.get("padding_value", 0.0)
    y, states = leaves["x"], {"h0": [], "c0": []}
    whole = len(set(H)) == 1 and problem.masks is None
    for layers in [range(L)] if whole else [range(layer, layer + 1) for layer in range(L)]:
        module = torch_module(problem, y.shape[2], H[layers[0]], len(layers), D == 2)
        first = "_l0" if whole else f"_l{layers[0]}"  # the module counts its own layers from 0
        parameters = {name: leaves[name.replace("_l0", first)] for name in module.state_dict()}
        state = [torch.cat([leaves[f"{kind}[{layer}]"] for layer in layers]) for kind in state_kinds(problem)]
        state = tuple(state) if problem.cell == "lstm" else state[0]
        if lengths is not None:
            y = torch.nn.utils.rnn.pack_padded_sequence(y, torch.tensor(lengths), enforce_sorted=False)
        y, state = torch.func.functional_call(module, parameters, (y, state), strict=True)
        if lengths is not None:
            T = len(problem.x)
            y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, padding_value=padding, total_length=T)
        for kind, final in zip(state_kinds(problem), state if problem.cell == "lstm" else [state], strict=True):
            states[kind] += final.split(D)
        if problem.masks is not None and layers[-1] < L - 1:
            y = y * torch.from_numpy(problem.masks[layers[-1]])
    return [y, *states["h0"], *states["c0"]]


MODULE_CASES = {
    "one-layer": dict(H=(6,)),
    "one-step": dict(H=(6,), T=1, B=1, I=1),
    "three-layers": dict(H=(6, 6, 6)),
    "three-layers-bidirectional": dict(H=(6, 6, 6), D=2),
    "three-layers-bidirectional-no-bias": dict(H=(6, 6, 6), D=2, bias="none"),
    "unequal-sizes": dict(H=(7, 1, 5)),
    "unequal-sizes-masks": dict(H=(7, 4, 5), masks=True),
    "unequal-sizes-bidirectional-masks": dict(H=(7, 4, 5), D=2, masks=True),
    "packed": dict(H=(6,), B=4, lengths=[3, 7, 1, 6]),
    "packed-three-layers-bidirectional": dict(H=(5, 5, 5), D=2, B=4, lengths=[3, 7, 1, 6], padding_value=-0.5),
    "packed-shorter-than-T": dict(H=(5, 4), D=2, lengths=[2, 5, 5], masks=True, bias="none", padding_value=2.0),
}
PROJECTED_CASES = {
    "projected": dict(H=(6,), proj=2),
    "projected-one-step": dict(H=(3,), proj=1, T=1, B=1),
    "projected-three-layers-bidirectional": dict(H=(6, 6, 6), D=2, proj=4),
    "projected-unequal-sizes-masks": dict(H=(7, 4, 5), D=2, proj=3, masks=True, bias="none"),
    "projected-packed-bidirectional": dict(H=(5, 5), D=2, proj=2, B=4, lengths=[3, 7, 1, 6], padding_value=-0.5),
}


MODULE_CELLS = [cell for cell in CELLS if cell != "gru_reset_before"]  # which torch.nn has not


def module_cases():
    for cell in MODULE_CELLS:
        for name, options in (MODULE_CASES | (PROJECTED_CASES if cell == "lstm" else {})).items():
            yield pytest.param(cell, options, id=f"{cell}-{name}")


@pytest.mark.parametrize(("cell", "options"), list(module_cases()))
def test_against_modules(cell, options):
    problem = Problem(cell, **(dict(T=7, B=3, I=5) | options))
    leaves = make_leaves(problem)
    assert_agrees(problem, run_modules(problem, leaves), leaves)


# ------------------------------------------------------------------ torch.nn's layers on pieces of single sequences
def run_pieces(problem, leaves):
    """Lengths and resets by cutting: a module with one layer and direction on each piece of each sequence."""
    T, B, _ = problem.x.shape
    lengths, resets = problem.options.get("lengths", [T] * B), problem.options.get("resets", np.zeros((T, B), bool))
    y, states = leaves["x"], {"h0": [], "c0": []}
    for layer, size in enumerate(problem.H):
        module = torch_module(problem, y.shape[2], size)
        outputs, finals = [], []
        for direction in range(problem.D):
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            parameters = {name: leaves[name.replace("_l0", suffix)] for name in module.state_dict()}
            columns = []
            for b in range(B):
                first = [leaves[f"{kind}[{layer}]"][direction, b][None, None] for kind in state_kinds(problem)]
                run = run_sequence(module, parameters, y[: lengths[b], [b]], first, resets[:, b], direction)
                padding = run[0].new_full((T - lengths[b], 1, run[0].shape[2]), problem.options.get("padding_value", 0))
                columns.append(torch.cat([run[0], padding]))
                finals.append(run[1])
            outputs.append(torch.cat(columns, 1))
        y = torch.cat(outputs, 2)
        for number, kind in enumerate(state_kinds(problem)):
            parts = [state[number] for state in finals]
            states[kind].append(torch.cat([torch.cat(parts[d * B : (d + 1) * B], 1) for d in range(problem.D)]))
    return [y, *states["h0"], *states["c0"]]


def run_sequence(module, parameters, x, first, resets, direction):
    """One sequence (n, 1, I), turned round for the reverse direction: y (n, 1, H) and the final states."""
    n = len(x)
    cuts = [t for t in range(1, n) if resets[t]]
    edges = [0, *cuts, n]
    spans = list(pairwise(edges))[:: -1 if direction else 1]
    state = [torch.zeros_like(part) for part in first] if direction == 0 and n > 0 and resets[0] else first
    ys = []
    for number, (start, stop) in enumerate(spans):
        if number > 0:
            state = [torch.zeros_like(part) for part in first]
        if n == 0:
            ys.append(x.new_zeros((0, 1, state[0].shape[2])))
            continue
        piece = x[start:stop].flip(0) if direction else x[start:stop]
        given = tuple(state) if len(state) == 2 else state[0]
        y, last = torch.func.functional_call(module, parameters, (piece, given), strict=True)
        ys.append(y.flip(0) if direction else y)
        state = list(last) if len(state) == 2 else [last]
    return torch.cat(ys[:: -1 if direction else 1]), state


def resets_at(T, B, *places):
    """(T, B) bools, True at the given (t, b)."""
    resets = np.zeros((T, B), bool)
    for place in places:
        resets[place] = True
    return resets


PIECES_CASES = {
    "resets": dict(H=(5,), resets=resets_at(7, 3, (0, 1), (2, 0), (3, 0), (6, 2))),
    "resets-two-layers-bidirectional": dict(H=(5, 3), D=2, resets=resets_at(7, 3, (0, 1), (2, 0), (3, 0), (6, 2))),
    "resets-everywhere-in-one": dict(H=(4,), D=2, resets=resets_at(7, 3, *((t, 1) for t in range(7)))),
    "lengths-with-zero": dict(H=(5, 4), D=2, lengths=[3, 0, 7], padding_value=0.7),
    "lengths-and-resets": dict(
        H=(5, 4), D=2, lengths=[3, 0, 6], resets=resets_at(7, 3, (0, 1), (2, 0), (3, 0), (5, 2), (6, 2), (1, 2))
    ),
}


@pytest.mark.parametrize("options", PIECES_CASES.values(), ids=PIECES_CASES.keys())
@pytest.mark.parametrize("cell", MODULE_CELLS)
def test_against_modules_on_pieces(cell, options):
    problem = Problem(cell, T=7, B=3, **options)
    leaves = make_leaves(problem)
    assert_agrees(problem, run_pieces(problem, leaves), leaves)


# ------------------------------------------------------------------------------------ a loop of PyTorch's operations
def run_loop(problem, leaves):
    """Every option, step by step for the whole batch: what does not concern a sequence leaves its state as it is."""
    y, states = leaves["x"], {"h0": [], "c0": []}
    for layer in range(len(problem.H)):
        outputs, finals = [], []
        for direction in range(problem.D):
            suffix = f"_l{layer}" + ("_reverse" if direction else "")
            named = {name.removesuffix(suffix): leaf for name, leaf in leaves.items() if name.endswith(suffix)}
            first = [leaves[f"{kind}[{layer}]"][direction] for kind in state_kinds(problem)]
            run = loop_direction(problem, y, named, first, direction)
            outputs.append(run[0])
            finals.append(run[1])
        y = torch.cat(outputs, 2)
        for kind, *parts in zip(state_kinds(problem), *finals, strict=True):
            states[kind].append(torch.stack(parts))
        if problem.masks is not None and layer < len(problem.H) - 1:
            y = y * torch.from_numpy(problem.masks[layer])
    return [y, *states["h0"], *states["c0"]]


def loop_direction(problem, x, named, state, direction):
    """y (T, B, H) and the final [h] or [h, c] of one layer and direction, from the initial ones (B, H)."""
    T, B, _ = x.shape
    own = torch.from_numpy(~problem.padding())[:, :, None]
    resets = torch.from_numpy(problem.options.get("resets", np.zeros((T, B), bool)))[:, :, None] & own
    padding = torch.tensor(problem.options.get("padding_value", 0.0), dtype=torch.float64)
    y = [None] * T
    for t in range(T) if direction == 0 else reversed(range(T)):
        if direction == 0:
            state = [torch.where(resets[t], 0.0, part) for part in state]
        after = loop_step(problem, x[t], named, state)
        y[t] = torch.where(own[t], after[0], padding)
        state = [torch.where(own[t], new, old) for new, old in zip(after, state, strict=True)]
        if direction == 1 and t > 0:
            state = [torch.where(resets[t], 0.0, part) for part in state]
    return torch.stack(y), state


def loop_step(problem, x, named, state):
    """One step: [h] or [h, c]. The equations of torch.nn's documentation, and Cho et al.'s GRU."""
    h = state[0]
    gates = GATES[problem.cell]
    ax = torch.cat([x] * gates, 1) if "weight_ih" not in named else x @ named["weight_ih"].T
    ah = h @ named["weight_hh"].T
    ax = ax + named["bias_ih"] if "bias_ih" in named else ax
    ah = ah + named["bias_hh"] if "bias_hh" in named else ah
    if problem.cell == "lstm":
        i, f, g, o = (ax + ah).chunk(4, 1)
        c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
        if problem.options.get("cell_clip") is not None:
            c = c.clamp(*problem.options["cell_clip"])
        h = o.sigmoid() * c.tanh()
        return [h @ named["weight_hr"].T if "weight_hr" in named else h, c]
    if problem.cell.startswith("gru"):
        r, z = (ax + ah)[:, : 2 * h.shape[1]].sigmoid().chunk(2, 1)
        candidate = r * ah.chunk(3, 1)[2]
        if problem.cell == "gru_reset_before":
            candidate = (r * h) @ named["weight_hh"].chunk(3)[2].T
            candidate = candidate + named["bias_hh"].chunk(3)[2] if "bias_hh" in named else candidate
        n = (ax.chunk(3, 1)[2] + candidate).tanh()
        return [(1 - z) * n + z * h]
    return [(ax + ah).tanh() if problem.cell == "rnn_tanh" else (ax + ah).relu()]


SOME_RESETS = resets_at(7, 4, (0, 1), (2, 0), (3, 0), (5, 2), (6, 2), (1, 2), (4, 3))
LOOP_CASES = {
    "plain": dict(),
    "skip": dict(skip=True),
    "skip-bidirectional": dict(skip=True, D=2),
    "everything": dict(D=2, masks=True, skip=True, lengths=[3, 0, 6, 7], resets=SOME_RESETS, padding_value=0.3),
}
LSTM_LOOP_CASES = {
    "clip": dict(cell_clip=(-0.3, 0.4)),
    "clip-bidirectional": dict(cell_clip=(-0.4, 0.2), D=2),
    "clip-skip-projected": dict(cell_clip=(-0.3, 0.4), skip=True, proj=2, D=2),
    "everything-clip-projected": LOOP_CASES["everything"] | dict(cell_clip=(-0.3, 0.4), proj=2),
}


def loop_cases():
    for cell in CELLS:
        for name, options in (LOOP_CASES | (LSTM_LOOP_CASES if cell == "lstm" else {})).items():
            for bias in BIASES:
                yield pytest.param(cell, options | dict(bias=bias), id=f"{cell}-{name}-{bias}")


@pytest.mark.parametrize(("cell", "options"), list(loop_cases()))
def test_against_a_loop_of_operations(cell, options):
    problem = Problem(cell, T=7, B=4, H=(5, 4), **options)
    leaves = make_leaves(problem)
    assert_agrees(problem, run_loop(problem, leaves), leaves)
