"""Random constructor options and inputs: ours and torch.nn's modules give the same numbers."""

import random

import pytest
import torch
from torch.nn.utils.rnn import pack_padded_sequence

import torch_modules

CASES = 180
GROUPS = 10  # of cases, each a test


def random_case(rng):
    """(module's name, its arguments, (x, state), what is done before the call) of a random case."""
    name = rng.choice(torch_modules.LAYERS)
    I, H, L = rng.randint(1, 6), rng.randint(2, 9), rng.randint(1, 3)  # noqa: E741
    D, dtype = rng.choice((1, 2)), rng.choice((torch.float32, torch.float64))
    options = dict(bias=rng.random() < 0.8, batch_first=rng.random() < 0.5, bidirectional=D == 2, dtype=dtype)
    options["dropout"] = rng.choice((0.0, 0.0, 0.3, 1.0)) if L > 1 else 0.0
    P = rng.randint(1, H - 1) if name == "LSTM" and rng.random() < 0.3 else 0
    if P:
        options["proj_size"] = P
    if name == "RNN":
        options["nonlinearity"] = rng.choice(("tanh", "relu"))
    T, B = rng.choice((1, 2, 5, 9)), rng.choice((1, 2, 5))
    form = rng.choice(("batched", "batched", "unbatched", "packed", "packed_sorted"))
    seed = rng.randrange(2**31)
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        values = torch.randn(shape, dtype=dtype, generator=generator)
        return values.transpose(0, 1).contiguous().transpose(0, 1) if rng.random() < 0.2 and len(shape) > 1 else values

    if form == "unbatched":
        x, batch = draw(T, I), ()
    else:
        x, batch = draw(*((B, T) if options["batch_first"] else (T, B)), I), (B,)
    state = draw(L * D, *batch, P or H)
    if name == "LSTM":
        state = state, draw(L * D, *batch, H)
    if form.startswith("packed"):
        lengths = [T, *(rng.randint(1, T) for _ in range(B - 1))]
        lengths = sorted(lengths, reverse=True) if form == "packed_sorted" else rng.sample(lengths, B)
        x = pack_padded_sequence(x, lengths, options["batch_first"], enforce_sorted=form == "packed_sorted")
    return name, (I, H, L), options, (x, state if rng.random() < 0.6 else None), rng.random() < 0.3


@pytest.mark.parametrize("group", range(GROUPS))
def test_same_numbers(group):
    rng = random.Random(group)
    for _ in range(CASES // GROUPS):
        name, sizes, options, inputs, evaluation = random_case(rng)
        theirs, ours = torch_modules.pair(name, *sizes, **options)
        if evaluation:
            theirs.eval(), ours.eval()
        try:
            torch_modules.assert_same(theirs, ours, *inputs)
        except AssertionError as error:
            raise AssertionError(f"{theirs} {options} of {inputs}: {error}") from error
