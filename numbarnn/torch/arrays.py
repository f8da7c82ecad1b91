"""Turn tensors into the engines' arrays and back, without copies: the same memory on the same stream."""

from contextlib import nullcontext

import numpy as np
import torch

from numbarnn.layers.prepared import CallersArrays


def array_of(tensor):
    """Return a tensor as an array of NumPy or CuPy; None stays None. Only strided tensors are copied."""
    if tensor is None:
        return None
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_cuda:
        import cupy

        return cupy.from_dlpack(tensor.resolve_neg().contiguous())
    if not tensor.is_contiguous():
        tensor = tensor.contiguous()
    return tensor.numpy(force=True)  # also resolves views whose memory holds other numbers (negated, zero)


def tensor_of(array):
    """Return an engine's array as a tensor that shares its memory; None stays None."""
    if array is None:
        return None
    return torch.from_numpy(array) if type(array) is np.ndarray else torch.from_dlpack(array)


def _into(array):
    """Return a function that copies a tensor into a NumPy array."""
    with torch.inference_mode(False):  # outside of inference mode nobody may write to a tensor from within
        view = torch.from_numpy(array)

    def copy(tensor):
        view.copy_(tensor.detach() if tensor.requires_grad else tensor)

    return copy


TENSORS = CallersArrays(array_of, _into)  # copying by PyTorch takes half the time of making an array first

_NOTHING = nullcontext()


def stream_of(tensor):
    """Return a context in which CuPy uses PyTorch's current stream of the tensor's device."""
    if not tensor.is_cuda:
        return _NOTHING
    import cupy

    return cupy.cuda.ExternalStream(torch.cuda.current_stream(tensor.device).cuda_stream, tensor.device.index)


# ------------------------------------------------------------------------------------------------------------ weights
def weights_of(network, weights):
    """Return the parameters as one flat array.

    It shares the memory of parameters that are views of one buffer, and is kept until they move. Other parameters are
    copied."""
    if is_flat(weights):
        return array_of(gathered(network, weights))
    first, (known, array) = weights[0], network.last_weights  # read once: another thread may change it
    places = [tensor.data_ptr() for tensor in weights if tensor.is_contiguous()]
    if (places, first.dtype, first.device) == known:
        return array
    check_weights(network, weights)
    item, memory = first.element_size(), first.untyped_storage()
    ends_inside = places and places[0] + network.size * item <= memory.data_ptr() + memory.nbytes()
    if not ends_inside or places != [places[0] + part.offset * item for part in network.parts]:
        return array_of(gathered(network, weights))
    array = array_of(first.detach().as_strided((network.size,), (1,)))
    network.last_weights = (places, first.dtype, first.device), array
    return array


def is_flat(weights):
    """Return whether one tensor holds all parameters."""
    return len(weights) == 1 and weights[0].dim() == 1


def gathered(network, weights):
    """Return all parameters as one flat tensor, through which gradients flow."""
    check_weights(network, weights)
    return weights[0] if is_flat(weights) else torch.cat([tensor.reshape(-1) for tensor in weights])


def check_weights(network, weights):
    """Raise ValueError unless the weights are all parameters, or one flat tensor, and have one dtype."""
    shapes, expected = [tuple(one.shape) for one in weights], [part.shape for part in network.parts]
    if shapes not in (expected, [(network.size,)]):
        names = ", ".join(f"{part.name} {part.shape}" for part in network.parts)
        raise ValueError(f"weights must be {names}, or one flat tensor ({network.size},), but have shapes {shapes}")
    first, pairs = weights[0].dtype, zip(weights, network.parts, strict=False)
    if others := [f"{part.name} {one.dtype}" for one, part in pairs if one.dtype != first]:
        raise ValueError(
            f"weights must have one dtype: {network.parts[0].name} has {first}, but these differ: {', '.join(others)}. "
            f"Convert them, or the module, with .to({first})"
        )


def gradients_of(network, weights, dw, needed):
    """Return views of the flat gradient, one for each weight; None for those that are not needed."""
    if is_flat(weights):
        return [dw if needed[0] else None]
    return [dw.as_strided(*place) if one else None for one, place in zip(needed, network.places, strict=True)]
