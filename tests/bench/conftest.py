"""What tests of the commands share."""

import json

import pytest

import fake_cudnn
from numbarnn import cli
from numbarnn.bench import timing
from numbarnn.bench.peers import cudnn
from numbarnn.bench.peers.cudnn import rnn as cudnn_rnn
from stub_layer import use_stub


@pytest.fixture
def command(tmp_path):
    """A function that runs a command which ends with that exit code: what it wrote as JSON."""
    path = tmp_path / "answer.json"

    def run(*arguments, code=0):
        ended = cli.main([*map(str, arguments), "--json", str(path)])
        found = json.loads(path.read_text())
        path.unlink()
        rows = found if isinstance(found, list) else found.get("results", ())
        assert ended == code, [row for row in rows if not row["ok"]]
        return found

    return run


@pytest.fixture
def page(tmp_path):
    """A function: the page that `numbarnn report` makes of a record, which stands in record.json then."""

    def report(found):
        path, html = tmp_path / "record.json", tmp_path / "page.html"
        path.write_text(json.dumps(found))
        assert cli.main(["report", str(path), "--html", str(html)]) == 0
        return html.read_text()

    return report


@pytest.fixture
def cannot(capsys):
    """A function that runs a command which cannot do what it is asked: what it says, in one line; code: 2 where that is
    due to its arguments."""

    def run(*arguments, code=1):
        assert cli.main([*map(str, arguments)]) == code
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and said.startswith(f"numbarnn {arguments[0]}: ")
        return said

    return run


@pytest.fixture
def stub(monkeypatch):
    """Layers that the float64 reference computes, in place of numbarnn's."""
    use_stub(monkeypatch)


@pytest.fixture
def short_turns(monkeypatch):
    """Turns of a millisecond, and PyTorch's number of threads as it was."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(timing, "TURN_S", 1e-3)
    monkeypatch.setattr(timing, "GPU_TURN_S", 1e-3)
    monkeypatch.setattr(timing, "GAP_S", 0.0)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def session(monkeypatch):
    """A fake cuDNN, as if it were the one of this machine."""
    found = fake_cudnn.session()
    monkeypatch.setattr(cudnn, "why_not", lambda: None)
    for module in (cudnn, cudnn_rnn):
        monkeypatch.setattr(module, "default_session", lambda: found)
    return found


@pytest.fixture
def real():
    """The session of cuDNN itself."""
    if problem := cudnn.why_not():
        pytest.skip(problem)
    return cudnn.default_session()


@pytest.fixture(params=["fake", pytest.param("real", marks=[pytest.mark.gpu, pytest.mark.real_gpu])])
def either(request):
    """A session of the fake cuDNN, and of the real one."""
    return request.getfixturevalue("session" if request.param == "fake" else "real")
