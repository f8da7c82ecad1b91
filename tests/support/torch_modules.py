"""Ours and torch.nn's modules side by side: made alike, called alike, compared."""

import torch

import numbarnn.torch as nrt

LAYERS = ("LSTM", "GRU", "RNN")
CELLS = ("LSTMCell", "GRUCell", "RNNCell")
# How far results may differ: float32 has sums of up to some hundred terms in another order.
TOLERANCE = {torch.float32: dict(rtol=2e-4, atol=2e-5), torch.float64: dict(rtol=1e-9, atol=1e-11)}


def pair(name, *args, seed=0, **options):
    """(torch.nn's module, ours), made after the same seed."""
    made = []
    for package in (torch.nn, nrt):
        torch.manual_seed(seed)
        made.append(getattr(package, name)(*args, **options))
    return made


def tensors(value):
    """All tensors in nested tuples and packed sequences, in their order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return [value.data]
    return [] if value is None else [one for part in value for one in tensors(part)]


def copied(value):
    """Nested tuples of tensors, or a packed sequence, as leaves of their own that want gradients."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone().requires_grad_(value.is_floating_point())
    if isinstance(value, torch.nn.utils.rnn.PackedSequence):
        return value._replace(data=copied(value.data))
    return value if value is None else tuple(copied(part) for part in value)


def trained(module, *inputs, seed=7, **options):
    """[results, gradients of inputs and parameters] of one training call, with the same gradients of all results."""
    inputs = copied(inputs)
    module.zero_grad()
    torch.manual_seed(seed)
    results = tensors(module(*inputs, **options))
    generator = torch.Generator().manual_seed(1)
    pairs = [(one, torch.randn(one.shape, generator=generator).to(one.dtype)) for one in results]
    torch.autograd.backward(*zip(*(pair for pair in pairs if pair[0].requires_grad), strict=True))
    gradients = [one.grad for one in (*tensors(inputs), *module.parameters())]
    return [one.detach() for one in results], gradients


def assert_same(theirs, ours, *inputs, **options):
    """Both modules give the same results and gradients, to rounding, in the same shapes and dtypes; what is drawn like
    results is the same too, as they have the same strides."""
    expected, found = trained(theirs, *inputs, **options), trained(ours, *inputs, **options)
    for one, other in zip(found[0] + found[1], expected[0] + expected[1], strict=True):
        torch.testing.assert_close(one, other, **TOLERANCE[other.dtype])
    assert [one.stride() for one in found[0]] == [one.stride() for one in expected[0]]
