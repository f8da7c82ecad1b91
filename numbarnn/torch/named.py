"""A module's parameters by the names that the cell's equations give them."""

import torch

from numbarnn.layers.named import Named


class NamedTensors(Named):
    """Name -> view of one parameter of a module: `module.named["R.f"]`, (H, H); see `numbarnn.layers.named.Named`.

    Views are those of the parameters as they are when looked up; gradients flow through them. Assign to a name, or
    write into a view under `torch.no_grad()`, to set a parameter.

    Args:
        module: with a `Computation`.
        grad: of its gradients.
    """

    def __init__(self, module, grad=False):
        computation = module._computation
        self._module, self._suffix, self._grad = module, computation.suffix, grad
        self._take(computation.stack.space)

    def _view(self, part, where, shape):
        return part, where.start - part.offset, shape

    @property
    def grad(self):
        """The same of the gradients: name -> view, or None where there is none."""
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
