"""The inputs with which PyTorch tests its own RNN, LSTM, GRU and their cells, through ours and torch.nn's modules."""

import pytest
import torch
from torch.testing._internal import common_modules

import numbarnn.torch as nrt
import torch_modules

# That import forbids the whole process to set PyTorch's flags, which other tests do.
torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True

INFOS = [info for info in common_modules.module_db if info.module_cls.__name__ in nrt.__all__]
DTYPES = (torch.float32, torch.float64)

each_module = pytest.mark.parametrize("info", INFOS, ids=lambda info: info.module_cls.__name__)


def inputs(info, dtype, training=True):
    options = {"with_packed_sequence": True} if info.module_cls in (torch.nn.RNN, torch.nn.GRU) else {}
    return info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training, **options)


def test_there_are_inputs():
    assert {info.module_cls.__name__ for info in INFOS} == {*torch_modules.LAYERS, *torch_modules.CELLS}
    assert all(len(inputs(info, torch.float32)) >= 2 for info in INFOS)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_module
def test_results_and_gradients(info, dtype):
    for sample in inputs(info, dtype):
        made, given = sample.constructor_input, sample.forward_input
        options = made.kwargs | {"dtype": dtype}
        theirs, ours = torch_modules.pair(info.module_cls.__name__, *made.args, **options)
        torch_modules.assert_same(theirs, ours, *given.args, **given.kwargs)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@each_module
def test_errors(info, dtype):
    samples = info.module_error_inputs_func(info, device="cpu", dtype=dtype, requires_grad=False, training=True)
    assert samples
    ours = getattr(nrt, info.module_cls.__name__)
    for sample in samples:
        made, given = sample.module_error_input.constructor_input, sample.module_error_input.forward_input
        if sample.error_on == common_modules.ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(sample.error_type, match=sample.error_regex):
                ours(*made.args, **made.kwargs)
            continue
        if made.args[2:]:  # a nonlinearity where a cell's bias stands
            with pytest.warns(UserWarning, match="counts as True, as in torch.nn: RNNCell takes nonlinearity="):
                module = ours(*made.args, **({"dtype": given.args[0].dtype} | made.kwargs))
        else:
            module = ours(*made.args, **({"dtype": given.args[0].dtype} | made.kwargs))
        with pytest.raises(sample.error_type, match=sample.error_regex):
            module(*given.args, **given.kwargs)
