"""Tests of `numbarnn.torch`: left out where PyTorch is not installed.

The folder is not called torch, as its files would be imported for PyTorch where that is missing.
"""

from importlib.util import find_spec

import pytest

collect_ignore_glob = [] if find_spec("torch") else ["test_*.py"]
collect_ignore = [] if find_spec("expecttest") else ["test_module_db.py"]  # which torch.testing._internal imports


@pytest.fixture(autouse=True)
def one_thread():
    """All problems here are small: PyTorch's threads would wait for each other most of the time."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
