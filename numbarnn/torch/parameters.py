"""A module's parameters as views of one flat buffer, in the engines' layout, and by the names of the equations."""

import torch
from torch.nn import Parameter

from numbarnn.layers.named import Named


class FlatParameters:
    """The flat buffer of a module's parameters.

    While all parameters are views of the buffer, calls take it as it is (`numbarnn.torch.arrays`). Parameters that came
    from elsewhere (`torch.func.functional_call`, parametrizations, `p.data = ...`) are gathered by each call.

    Args:
        names: [network] -> the module's names of its parameters, in the order of its weight space; the networks'
            parameters stand one behind the other.
    """

    def __init__(self, names):
        self._names, self._all = names, [name for own in names for name in own]

    def of(self, module):
        """[network] -> the parameters that the module has now, in the order of the buffer."""
        held = module._parameters
        try:
            return [[held[name] for name in own] for own in self._names]
        except KeyError:  # parametrized, pruned, or a replica's on another device
            return [[getattr(module, name) for name in own] for own in self._names]

    def flatten(self, module):
        """Make the parameters views of one new buffer, unless they are such views already, or cannot be."""
        own = [module._parameters.get(name) for name in self._all]
        if torch.compiler.is_compiling() or not _can_be_views(own) or _are_views(own):
            return
        with torch.no_grad():
            buffer = torch.cat([one.reshape(-1) for one in own])
            for one, view in zip(own, torch._C._nn.unflatten_dense_tensors(buffer, own), strict=True):
                one.data = view


def _can_be_views(own):
    """Whether these are parameters that can be views of one buffer. Those that share memory with each other stay so."""
    first = own[0]
    if any(type(one) is not Parameter or one.dtype != first.dtype or one.device != first.device for one in own):
        return False
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, own)):  # made under a transformation
        return False
    return not first.is_meta and len({one.data_ptr() for one in own}) == len(own)


def _are_views(own):
    """Whether these stand in one buffer, one behind the other."""
    place, storage = own[0].data_ptr(), own[0].untyped_storage().data_ptr()
    for one in own:
        if one.data_ptr() != place or one.untyped_storage().data_ptr() != storage or not one.is_contiguous():
            return False
        place += one.nbytes
    return True


class NamedTensors(Named):
    """Map names of the equations to views of a module's parameters: `module.named["R.f"]` (H, H); see `Named`.

    Gradients flow through the views. To set a parameter assign to a name, or write into a view under `torch.no_grad()`.

    Args:
        module: a module with a `Computation`.
        grad: map to gradients instead.
    """

    def __init__(self, module, grad=False):
        computation = module._computation
        self._module, self._suffix, self._grad = module, computation.suffix, grad
        self._take(computation.stack.space)

    def _view(self, part, where, shape):
        return part, where.start - part.offset, shape

    @property
    def grad(self):
        """Return the gradients: name -> view, or None for a parameter without gradient."""
        return NamedTensors(self._module, grad=True)

    def __getitem__(self, name):
        part, first, shape = super().__getitem__(name)
        whole = getattr(self._module, part.name.removesuffix(self._suffix))
        whole = whole.grad if self._grad else whole
        return None if whole is None else whole.reshape(-1)[first : first + torch.Size(shape).numel()].reshape(shape)

    def __setitem__(self, name, value):
        if self._grad:
            raise TypeError(f"[{name!r}] = ... sets no gradient; write into the view: [{name!r}][...] = ...")
        view = self[name]
        value = torch.as_tensor(value, dtype=view.dtype, device=view.device)
        if value.shape not in ((), view.shape):
            raise ValueError(f"named[{name!r}] must have shape {tuple(view.shape)}, but has {tuple(value.shape)}")
        with torch.no_grad():
            view.copy_(value)
