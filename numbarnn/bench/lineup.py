"""The peers that run a case of `numbarnn bench`, and whether everybody's results are right.

On a GPU these are cuDNN's algorithms, called directly, and PyTorch, which takes one of them; on the CPU PyTorch and,
for inference in float32, onnxruntime. Each may be at most twice as far as PyTorch from what PyTorch computes in
float64, or as far as `accuracy.floor`. PyTorch and cuDNN may err by `accuracy.PEER_TRUST` floors: persistent algorithms
of cuDNN's err by 1.7 in float32. Where TF32 is allowed, float16's floor counts: products read as many bits. Other
cells: `custom_cells`; single steps: `stream`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

from numbarnn.bench import accuracy
from numbarnn.bench.peers import onnx_peer, torch_peer
from numbarnn.bench.peers.contender import installed, made_again
from numbarnn.bench.peers.cudnn_peer import cudnn_contenders
from numbarnn.bench.shapes import FORWARD, quantities

OTHER_FORM = "it is timed over sequences of one length"
NO_SKIP = "it has no skip input: with an identity for W it would multiply once more"


def _judged_as(case):
    return replace(case, dtype="float16") if case.allow_tf32 is True and case.dtype == "float32" else case


def limit(case, torch_error):
    """Return the largest error that passes."""
    return accuracy.limit(_judged_as(case), torch_error)


def largest_trusted(case, torch_error):
    """Return the largest error that PyTorch's own results may have."""
    return accuracy.PEER_TRUST * accuracy.floor(_judged_as(case))


@dataclass
class LineUp:
    """The peers on one pass of a case.

    results: PyTorch's, by quantity: what is wanted of everybody; none: nothing is. truth: those in float64.
    """

    case: object
    truth: dict
    results: dict
    rivals: list = field(default_factory=list)  # contenders whose results are right
    agreement: list = field(default_factory=list)  # rows of `compare` of others than PyTorch
    left_out: dict = field(default_factory=dict)  # name -> why it has no times
    limit_of: Callable = limit  # (case, PyTorch's error) -> the largest one that passes

    @classmethod
    def of_torch(cls, case, truth, what, torch, parameters=(), lacks=""):
        """Begin with PyTorch, a rival if its results can be trusted and it lacks nothing."""
        wanted = quantities(what, parameters)
        line = cls(case, truth, {name: value for name, value in torch.results(torch.call()).items() if name in wanted})
        if reason := disagreement(line.compare(torch, largest_trusted)) or lacks:
            line.left_out[torch.name] = reason
        else:
            line.rivals.append(torch)
        return line

    def compare(self, contender, limit_of=None):
        """Return a contender's results against float64, as rows: contender, quantity, error, PyTorch's error, limit,
        ok, message."""
        found, rows = contender.results(contender.call()) if self.results else {}, []
        for quantity, value in self.results.items():
            missing = quantity not in found
            message = "no result" if missing else accuracy.shape_problem(found[quantity], value, self.case.dtype)
            error = float("nan") if message else accuracy.error(found[quantity], self.truth[quantity])
            torch_error = accuracy.error(value, self.truth[quantity])
            row = {"contender": contender.name, "quantity": quantity, "error": error, "torch_error": torch_error}
            row["limit"] = (limit_of or self.limit_of)(self.case, torch_error)
            rows.append(row | {"ok": error <= row["limit"], "message": message})
        return rows

    def add(self, name, make, limit_of=None):
        """Make a contender, and a rival of it if its results are right; else it is left out, with the reason."""
        made, rows, reason = attempt(make, partial(self.compare, limit_of=limit_of))
        self.agreement += rows
        if made:
            self.rivals.append(made)
        else:
            self.left_out[name] = reason


def line_up(instance, truth, what, where):
    """Return the `LineUp` of a pass; truth: PyTorch's results in float64.

    Where layer 0 has no W, PyTorch computes with an identity for W. Its results are compared, but it gets no time.
    """
    case, train, device, skips = instance.case, what != FORWARD, where.device, instance.case.input_mode == "skip"
    torch = made_again(lambda: torch_peer.torch_contender(instance, train, device))
    line = LineUp.of_torch(case, truth, what, torch, instance.parameters, NO_SKIP * skips)
    if device == "cuda":
        contenders, refusals = cudnn_contenders(instance, what)
        line.left_out |= refusals
        for contender in contenders:
            line.add(contender.name, lambda contender=contender: contender, largest_trusted)
    elif not train and not skips and case.dtype == "float32" and installed("onnx", "onnxruntime"):
        if case.lengths:
            line.left_out[onnx_peer.NAME] = OTHER_FORM
        else:
            make = lambda: onnx_peer.onnxruntime_contender(instance, where.threads)  # noqa: E731
            line.add(onnx_peer.NAME, lambda: made_again(make))
    return line


def attempt(make, rows_of):
    """Return (contender, agreement, refusal) of one who asks for times: no contender where there is a refusal.

    make: makes the contender. rows_of: gives rows of `LineUp.compare` of it.
    """
    contender, agreement = None, []
    try:
        contender = make()
        agreement.extend(rows_of(contender))
        refusal = disagreement(agreement)
    except Exception as exception:
        refusal = said(exception)
    return None if refusal else contender, agreement, refusal


def said(exception):
    """Return an exception as a refusal."""
    return f"{type(exception).__name__}: {exception}"


def disagreement(agreement):
    """Return the worst of the rows that are wrong, in words; None where none is."""
    wrong = [row for row in agreement if not row["ok"]]
    if not wrong:
        return None
    worst = max(wrong, key=lambda row: row["error"] if row["error"] == row["error"] else float("inf"))
    how = worst["message"] or f"is {worst['error']:.1e} from float64, more than {worst['limit']:.1e}"
    return f"{worst['contender']}'s {worst['quantity']}: {how}"
