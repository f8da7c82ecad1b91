"""A call of cuDNN's that runs again and again on the same memory: what a benchmark takes the time of."""


class Prepared:
    """Forward in inference; or forward in training, backward data and backward weights. `Rnn.prepare` makes it.

    Weights were packed and copied to the device, descriptors made and spaces allocated when it was made, and the calls
    made once. A run copies nothing, allocates nothing and does not wait; where cuDNN's calls can be recorded, it is the
    launch of one CUDA graph. As cuDNN adds gradients of weights to what is there, a run with backward begins by setting
    them to zero.

    `choose` lets a run make some of the calls only, such as backward data: again and again with the reserve space of
    one forward. As backward data changes that space, `results` makes all calls anew.

    Attributes:
        why_no_graph: why `run` makes cuDNN's calls one by one, in cuDNN's or CUDA's words; None: it launches a
            graph.
    """

    def __init__(self, session, call, functions):
        self._session, self._call, self._graph, self.why_no_graph = session, call, None, None
        self._arguments = {function: call.arguments(function) for function in functions}
        self._start(functions, None)  # not recorded yet: what cuDNN loads and allocates at first is there then
        self.choose(*functions)

    def choose(self, *functions):
        """From now on a run makes these of the calls only."""
        self._session.device.synchronize()
        self._chosen, self._graph, self.why_no_graph = functions, None, None
        try:
            self._graph = self._session.device.record(self._recorded)
        except RuntimeError as error:
            self.why_no_graph = str(error)

    def run(self):
        """Start it on the default stream."""
        if self._graph is None:
            self._start(self._chosen, None)
        else:
            self._session.device.launch(self._graph)

    def results(self):
        """Name -> array: y, hy, cy; with backward also dx, dhx, dcx and the flat dw. Waits for the device."""
        if len(self._chosen) < len(self._arguments):
            self._start(self._arguments, None)
        self._session.device.synchronize()
        names = {"y", "hy", "cy", "dx", "dhx", "dcx", "dw"} & self._call.buffers.keys()
        return {name: array for name in names if (array := self._call.read(name)) is not None}

    def _recorded(self, stream):
        with self._session.on_stream(stream):
            self._start(self._chosen, stream)

    def _start(self, functions, stream):
        for function in functions:
            if "dweightSpace" in self._arguments[function]:
                self._session.device.fill(self._call.buffers["dw"], 0, stream)
            self._session.start(function, **self._arguments[function])
