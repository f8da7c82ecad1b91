"""The inputs with which PyTorch tests its own RNN, LSTM, GRU and their cells, through ours and torch.nn's modules."""

import pytest
import torch

import numbarnn.torch as nrt
import torch_modules


@pytest.fixture(scope="module")
def common_modules():
    """PyTorch's module of that name: not before it is needed, as it takes 60 MB of every worker."""
    from torch.testing._internal import common_modules

    # That import forbids the whole process to set PyTorch's flags, which other tests do.
    torch.backends.disable_global_flags.__globals__["__allow_nonbracketed_mutation_flag"] = True
    return common_modules


@pytest.fixture(scope="module")
def infos(common_modules):
    """Name of a class -> PyTorch's `ModuleInfo` of it."""
    known = {info.module_cls.__name__: info for info in common_modules.module_db}
    return {name: info for name, info in known.items() if name in nrt.__all__}


@pytest.fixture(params=(*torch_modules.LAYERS, *torch_modules.CELLS))
def info(request, infos):
    return infos[request.param]


def inputs(info, training=True):
    options = {"with_packed_sequence": True} if info.module_cls in (torch.nn.RNN, torch.nn.GRU) else {}
    return info.module_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=True, training=training, **options
    )


def test_there_are_inputs(infos):
    assert {*infos} == {*torch_modules.LAYERS, *torch_modules.CELLS}
    assert all(len(inputs(info)) >= 2 for info in infos.values())


def test_results_and_gradients(info):
    for sample in inputs(info):
        made, given = sample.constructor_input, sample.forward_input
        options = made.kwargs | {"dtype": torch.float32}
        theirs, ours = torch_modules.pair(info.module_cls.__name__, *made.args, **options)
        torch_modules.assert_same(theirs, ours, *given.args, **given.kwargs)


def test_errors(common_modules, info):
    samples = info.module_error_inputs_func(info, device="cpu", dtype=torch.float32, requires_grad=False, training=True)
    assert samples
    ours = getattr(nrt, info.module_cls.__name__)
    for sample in samples:
        made, given = sample.module_error_input.constructor_input, sample.module_error_input.forward_input
        if sample.error_on == common_modules.ModuleErrorEnum.CONSTRUCTION_ERROR:
            with pytest.raises(sample.error_type, match=sample.error_regex):
                ours(*made.args, **made.kwargs)
            continue
        if made.args[2:]:  # a nonlinearity where a cell's bias stands
            with pytest.warns(UserWarning, match="counts as True, as in torch.nn: to set the nonlinearity"):
                module = ours(*made.args, **({"dtype": given.args[0].dtype} | made.kwargs))
        else:
            module = ours(*made.args, **({"dtype": given.args[0].dtype} | made.kwargs))
        with pytest.raises(sample.error_type, match=sample.error_regex):
            module(*given.args, **given.kwargs)
