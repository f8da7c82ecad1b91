"""Training runs with either import: the same numbers; in several processes, threads and workers of a DataLoader."""

import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import numbarnn.torch as nrt
import torch_modules

TEXT = ("the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. " * 12).encode()


class WordModel(nn.Module):
    """The model of PyTorch's example word_language_model: embedding, dropout, recurrent layers, dropout, decoder."""

    def __init__(self, package, kind, characters, size, layers, dropout):
        super().__init__()
        self.drop, self.encoder = nn.Dropout(dropout), nn.Embedding(characters, size)
        self.rnn = getattr(package, kind)(size, size, layers, dropout=dropout)
        self.decoder = nn.Linear(size, characters)
        self.decoder.weight = self.encoder.weight
        nn.init.uniform_(self.encoder.weight, -0.1, 0.1)

    def forward(self, inputs, state):
        y, state = self.rnn(self.drop(self.encoder(inputs)), state)
        return torch.log_softmax(self.decoder(self.drop(y)).flatten(0, 1), dim=1), state


def loss_curve(package, kind, seed):
    """Losses of that example's loop: batches in order, states carried on and detached, gradients clipped, SGD."""
    torch.manual_seed(seed)
    characters = sorted(set(TEXT))
    data = torch.tensor([characters.index(one) for one in TEXT])
    data = data[: len(data) // 8 * 8].view(8, -1).t().contiguous()
    model, state, losses = WordModel(package, kind, len(characters), 24, 2, dropout=0.2), None, []
    for first in range(0, len(data) - 1 - 10, 10):
        state = detached(state)
        model.zero_grad()
        output, state = model(data[first : first + 10], state)
        loss = nn.functional.nll_loss(output, data[first + 1 : first + 11].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        with torch.no_grad():
            for one in model.parameters():
                one.add_(one.grad, alpha=-5.0)
        losses.append(loss.item())
    return losses


def detached(state):
    if state is None or isinstance(state, torch.Tensor):
        return state if state is None else state.detach()
    return tuple(one.detach() for one in state)


@pytest.mark.parametrize("kind", torch_modules.LAYERS)
@pytest.mark.parametrize("seed", (0, 1))
def test_a_language_model_learns_the_same(kind, seed):
    theirs, ours = (loss_curve(package, kind, seed) for package in (nn, nrt))
    assert ours[-1] < ours[0] - 0.3
    assert ours == pytest.approx(theirs, rel=2e-4)


# ---------------------------------------------------------------- several processes
def train_in_parallel(rank, meeting_place, results):
    """One of two processes: a few steps under DistributedDataParallel, on this process' half of the batch."""
    torch.set_num_threads(1)
    patience = timedelta(seconds=60)  # then it fails, and does not keep all tests waiting
    torch.distributed.init_process_group("gloo", f"file://{meeting_place}", patience, world_size=2, rank=rank)
    model, x = parallel_model(nrt)
    model = nn.parallel.DistributedDataParallel(model)
    losses = train(model, x[:, 2 * rank : 2 * rank + 2])
    for loss in losses:
        torch.distributed.all_reduce(loss)
    if rank == 0:
        torch.save((torch.stack(losses) / 2, list(model.parameters())), results)
    # The model's reducer would be the last to let go of the group: it waits then for gloo's thread, with Python's lock,
    # which that thread may be waiting for.
    del model
    torch.distributed.destroy_process_group()


def parallel_model(package):
    torch.manual_seed(3)
    return package.LSTM(3, 5, 2), torch.randn(6, 4, 3)


def train(model, x):
    optimizer, losses = torch.optim.Adam(model.parameters(), 0.05), []
    for _ in range(4):
        optimizer.zero_grad()
        loss = model(x)[0].square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


def test_distributed_data_parallel(tmp_path):
    """Two processes with half of the batch each do what one does with all of it."""
    results = tmp_path / "results.pt"
    given = tmp_path / "meeting place", results
    forks = sys.platform == "linux" and not torch.cuda.is_available()  # others must import PyTorch once more
    torch.multiprocessing.start_processes(train_in_parallel, given, nprocs=2, start_method="fork" if forks else "spawn")
    losses, parameters = torch.load(results, weights_only=False)
    model, x = parallel_model(nn)
    torch.testing.assert_close(losses, torch.stack(train(model, x)), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(parameters, list(model.parameters()), rtol=1e-3, atol=1e-4)


# ---------------------------------------------------------------- workers and threads
class Encoded(Dataset):
    """Items that a model computes in the worker that fetches them."""

    def __init__(self, model, x):
        self.model, self.x = model, x

    def __len__(self):
        return len(self.x)

    def __getitem__(self, item):
        with torch.no_grad():
            return self.model(self.x[item])[0]


def test_in_workers_of_a_data_loader():
    theirs, ours = torch_modules.pair("GRU", 3, 5)
    x = torch.randn(6, 4, 3)
    ours(x[0])  # compiled before workers are forked
    found = torch.cat(list(DataLoader(Encoded(ours, x), batch_size=2, num_workers=2)))
    torch.testing.assert_close(found, torch.cat(list(DataLoader(Encoded(theirs, x), batch_size=2))))


def test_in_several_threads():
    """One module, called and trained by four threads at once, each with an x of its own."""
    theirs, ours = torch_modules.pair("LSTM", 3, 5, 2)
    inputs = [torch.randn(steps, 4, 3) for steps in (3, 5, 8, 8)] * 4

    def gradients(module, x):
        y, _ = module(x)
        return y, *torch.autograd.grad(y.square().sum(), list(module.parameters()))

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda x: gradients(ours, x), inputs))
    for one, x in zip(found, inputs, strict=True):
        torch.testing.assert_close(one, gradients(theirs, x), rtol=1e-4, atol=1e-5)
