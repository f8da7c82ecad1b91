"""A module's parameters as views of one flat buffer, and by the equations' names."""

import torch
from torch.nn import Parameter

from numbarnn.layers.named import Named


def flatten(module, names):
    """Make a module's parameters views of one new flat buffer, unless they are such views already, or cannot be.

    Calls take such a buffer unchanged (`numbarnn.torch.arrays`). Parameters from elsewhere
    (`torch.func.functional_call`, parametrizations, `p.data = ...`) are copied by each call."""
    tensors = [module._parameters.get(name) for name in names]
    if torch.compiler.is_compiling() or not _can_be_views(tensors) or _are_views(tensors):
        return
    with torch.no_grad():
        buffer = torch.cat([one.reshape(-1) for one in tensors])
        for one, view in zip(tensors, torch._C._nn.unflatten_dense_tensors(buffer, tensors), strict=True):
            one.data = view


def _can_be_views(tensors):
    """Return whether parameters can become views of one buffer. Parameters that share memory cannot."""
    first = tensors[0]
    if any(type(one) is not Parameter or one.dtype != first.dtype or one.device != first.device for one in tensors):
        return False
    if any(map(torch._C._functorch.is_functorch_wrapped_tensor, tensors)):  # made under a transformation
        return False
    return not first.is_meta and len({one.data_ptr() for one in tensors}) == len(tensors)


def _are_views(tensors):
    """Return whether tensors are contiguous parts of one buffer, one after another."""
    place, storage = tensors[0].data_ptr(), tensors[0].untyped_storage().data_ptr()
    for one in tensors:
        if one.data_ptr() != place or one.untyped_storage().data_ptr() != storage or not one.is_contiguous():
            return False
        place += one.nbytes
    return True


class NamedTensors(Named):
    """Map names of the equations to views of a module's parameters: `module.named["R.f"]` (H, H); see `Named`.

    Views show the parameters at the time of look-up; gradients flow through them. Assign to a name, or write into a
    view under `torch.no_grad()`, to set a parameter.

    Args:
        module: a module that has a `Computation`. grad: give views of the parameters' gradients.
    """

    def __init__(self, module, grad=False):
        computation = module._computation
        self._module, self._suffix, self._grad = module, computation.suffix, grad
        self._take(computation.space)

    def _view(self, part, where, shape):
        return part, where.start - part.offset, shape

    def owner(self, name):
        """Return the name of the module's parameter that holds `name`."""
        return super().__getitem__(name)[0].name.removesuffix(self._suffix)

    @property
    def grad(self):
        """Map each name to a view of the gradient, or None."""
        return NamedTensors(self._module, grad=True)

    def __getitem__(self, name):
        _, first, shape = super().__getitem__(name)
        whole = getattr(self._module, self.owner(name))
        whole = whole.grad if self._grad else whole
        return None if whole is None else whole.reshape(-1)[first : first + torch.Size(shape).numel()].reshape(shape)

    def __setitem__(self, name, value):
        if self._grad:
            raise TypeError(f"gradients cannot be assigned by name: write into the view, [{name!r}][...] = ...")
        view = self[name]
        value = torch.as_tensor(value, dtype=view.dtype, device=view.device)
        if value.shape not in ((), view.shape):
            raise ValueError(f"named[{name!r}] must have shape {tuple(view.shape)}, but has {tuple(value.shape)}")
        with torch.no_grad():
            view.copy_(value)
