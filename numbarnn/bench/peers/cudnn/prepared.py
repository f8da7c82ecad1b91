"""A call of cuDNN's that runs again and again on the same memory: what a benchmark takes the time of."""

from . import driver


class Prepared:
    """Forward in inference; or forward in training, backward data and backward weights. `Rnn.prepare` makes it.

    Weights were packed and copied to the device, descriptors made and spaces allocated when it was made. A run copies
    nothing, allocates nothing and does not wait; where cuDNN's calls can be recorded, it is the launch of one CUDA
    graph. As cuDNN adds gradients of weights to what is there, a run with backward begins by setting them to zero.

    Args:
        session: a `Session`. calls: cuDNN's functions in their order, with all arguments. buffers: what they read and
            write, by name. shapes: of the results among these, None for what there is not. dtype: NumPy's.
        kept: anything else that the calls refer to.

    Attributes:
        why_no_graph: why `run` makes cuDNN's calls one by one, in cuDNN's or the driver's words; None: it launches a
            graph.

    Raises:
        CudnnError: cuDNN refuses, or fails: the calls were made once.
    """

    def __init__(self, session, calls, buffers, shapes, dtype, kept):
        self._session, self._calls, self._buffers, self._kept = session, calls, buffers, kept
        self._shapes, self._dtype, self._graph, self.why_no_graph = shapes, dtype, None, None
        self._start(None)  # not recorded yet: what cuDNN loads and allocates at first is there then
        session.device.synchronize()
        try:
            self._graph = driver.Graph(session.device, self._recorded)
        except RuntimeError as error:
            self.why_no_graph = str(error)

    def run(self):
        """Start it on the default stream."""
        if self._graph is None:
            self._start(None)
        else:
            self._graph.launch()

    def results(self):
        """Name -> array: y, hy, cy; with backward also dx, dhx, dcx and the flat dw. Waits for the device."""
        self._session.device.synchronize()
        shapes = {name: shape for name, shape in self._shapes.items() if shape is not None}
        return {name: self._buffers[name].read(shape, self._dtype) for name, shape in shapes.items()}

    def _recorded(self, stream):
        with self._session.on_stream(stream):
            self._start(stream)

    def _start(self, stream):
        if "dw" in self._shapes:
            dw = self._buffers["dw"]
            self._session.device.fill_on(stream, dw.address, 0, dw.size)
        for function, arguments in self._calls.items():
            self._session.start(function, **arguments)
