"""Networks that compute a module, from its sizes and options and its flat buffer of parameters."""

import math

import torch

from numbarnn.layers import private
from numbarnn.programs.states import with_each
from numbarnn.torch import checks, core, loop, states
from numbarnn.torch.calls import PLAIN, call, engine_call, goes_by_operators, is_in_forward_mode, requires_grad
from numbarnn.torch.networks import Network
from numbarnn.torch.parameters import FlatParameters, NamedTensors


class Computation:
    """The networks that compute a module.

    One network computes all layers. There is one per layer if layers differ in size, and with dropout between them:
    torch draws the dropped elements; after the same `torch.manual_seed` they are those of torch.nn's modules.

    Args:
        options: of `Network`. by_layer: whether there is one network per layer.
        suffix: the end of the network's parameter names that the module's names lack: "_l0" for one layer.

    Attributes:
        space: of all parameters, a `WeightSpace`.
        shapes, bounds: name -> shape of each parameter, and bound of its first values, 1/√H, in torch.nn's order.
        layers: [layer and direction] -> names of its parameters. flat: the `FlatParameters`.
        stack: all layers, a `Stack`. states: the names of the cell's states, h first.
        dropout: the probability that networks apply by themselves. loop: whether calls run as `numbarnn.torch.loop`.
    """

    def __init__(self, options, by_layer=False, suffix=""):
        self.loop = options.get("schedule") == "loop"
        options = options | {"schedule": "auto"} if self.loop else options
        network = Network(**options)
        whole = self.stack = network.stack
        by_layer = by_layer or not (self.loop or whole.equal_widths)
        self.states, self.by_layer, self.dropout = whole.cell.states, by_layer, whole.dropout
        self._networks = [Network(**one) for one in _options_by_layer(options, whole)] if by_layer else [network]
        self.space = network.space
        places = {part.name.removesuffix(suffix): part for part in network.parts}
        self.shapes = {name.removesuffix(suffix): shape for name, shape in self.space.shapes.items()}
        self.bounds = {name: 1.0 / math.sqrt(whole.hidden_sizes[places[name].layer]) for name in self.shapes}
        self.layers = [
            [name for name in self.shapes if (places[name].layer, places[name].direction) == (layer, direction)]
            for layer in range(whole.num_layers) for direction in range(whole.directions)
        ]  # fmt: skip
        self.suffix = suffix
        self.flat = FlatParameters([
            [part.name.replace("_l0", f"_l{layer}" if by_layer else "_l0").removesuffix(suffix) for part in one.parts]
            for layer, one in enumerate(self._networks)
        ])  # fmt: skip

    def initial(self):
        """Yield (name, first element, last, value) of the parameters whose initial values the cell's equations define.
        They are drawn anew each time, by PyTorch's generator."""
        stack = self.stack
        if stack.cell.initial:
            key = int(torch.randint(2**62, ()))
            for part, where, value in self.space.initial(stack.cell.initial, key):
                yield part.name, where.start - part.offset, where.stop - part.offset, value

    def take_apart_or_join(self, state_dict, prefix):
        """Give a state dict this module's parameters, if it has those of a module with the other `split`."""
        whole, pieces = self.stack.space, self.stack.space.split().parameters
        for part in whole.parameters:
            name = f"{prefix}{part.name.removesuffix(self.suffix)}"
            inside = [one for one in pieces if part.offset <= one.offset < part.offset + part.size]
            names = [f"{prefix}{one.name}" for one in inside]
            if name in names:  # an array of its own in both
                continue
            if self.space is not whole and name in state_dict:
                array = state_dict.pop(name)
                rows = [one.shape[0] for one in inside]  # of a wrong shape PyTorch names the pieces
                parts = array.split(rows) if array.shape == part.shape else array.tensor_split(len(rows))
                state_dict.update(zip(names, parts, strict=True))
            elif self.space is whole and all(one in state_dict for one in names):
                state_dict[name] = torch.cat([state_dict.pop(one) for one in names])

    # ---------------------------------------------------------------- the call
    def again(self, module, x, hx, batch_first):
        """Return the form of a call without lengths, resets and output states, see `form_of`, and its results.

        The results are (y, the final state) if the last call had this form, else None: on small inputs Python takes
        longer to check a call than the engine to compute it. A call with the last one's form passes the same checks and
        needs the same plans and weights; only the numbers in its arrays differ."""
        network = self._networks[0]
        if self.by_layer or self.loop or self.stack.has_narrow or not network.remembers:
            return None, None
        weights = self.flat.of(module)[0]
        form, last = form_of(network.private, batch_first, x, hx, weights), network.last_call
        if form is None or last is None or last[0] != form:
            return form, None
        x = time_first(x) if batch_first else x
        h, c = (hx, None) if hx is None or not network.private else hx
        keep, known = torch.is_grad_enabled() and requires_grad(x, h, c, weights), last[1]
        if keep not in known:
            prepared, buffer = core.prepare(network, core.About(), x, h, weights, keep), network.last_weights
            # Parameters that are not views of one buffer were copied: later calls cannot use that copy.
            is_theirs = prepared.dtype is None and buffer is not None and prepared.weights is buffer.array
            known[keep] = prepared if is_theirs else None
        if known[keep] is None:
            return form, None
        y, h, c, _ = engine_call(known[keep], keep, x, h, c, weights)
        return form, (y.transpose(0, 1) if batch_first else y, (h, c) if network.private else h)

    def run(self, module, x, state, about, drop=None, form=None, batch_first=False):
        """Return (y, the final state, with `output_states` the cell states of every step).

        x: (T, B, I), or (B, T, I) with `batch_first`. state: of `numbarnn.torch.states.taken`, or None. about: the
        `core.About`. drop: f(y of a layer) -> the next layer's input, or None. form: of `again`."""
        # Steps are computed time first, and y is a view with batch first, as torch.nn returns it: random numbers that
        # are drawn in the form of y, for a Dropout after the module for instance, are the same then.
        if batch_first:
            resets = None if about.resets is None else torch.as_tensor(about.resets).transpose(0, 1)
            y, state, *more = self.run(module, time_first(x), state, about._replace(resets=resets), drop, form)
            return y.transpose(0, 1), state, *(with_each(one, lambda value: value.transpose(0, 1)) for one in more)
        weights, stack = self.flat.of(module), self.stack
        first = weights[0][0]
        if x.dtype is not first.dtype or x.shape[2] != stack.input_size or x.device != first.device or not x.numel():
            x, state = checks.fitted_input(stack.input_size, x, state, first)
        if state is not None:
            states.check_state(stack, state, x.shape[1], x)
        looped = self.loop or not x.shape[1]  # of no sequences PyTorch's own operations make gradients of 0
        about = about if x.shape[1] else about._replace(training=False)
        if state is not None and stack.has_narrow and not looped:
            state = private.for_engines(torch, state, stack)
        y, state, *every = self._through(weights, x, state, about, drop, looped)
        network = self._networks[0]
        if form and not looped and (network.last_call is None or network.last_call[0] != form):
            network.last_call = form, {}  # by whether backward may follow: a `core.PreparedCall`
        if stack.has_narrow and not looped:
            (y,), state = private.steps_for_callers([y], stack), private.for_callers(torch, state, stack)
            every = [private.steps_for_callers(one, stack, first=1) for one in every]
        return y, state if len(state) > 1 else state[0], *every

    def _through(self, weights, x, state, about, drop, looped):
        """Return [y, state, with `output_states` the cell states of every step] through all networks.
        weights: [network] -> its parameters. drop: as of `run`. looped: by `numbarnn.torch.loop`."""
        y, finals, last = x, [], len(self._networks) - 1
        for number, (network, own) in enumerate(zip(self._networks, weights, strict=True)):
            if number:
                (y,) = private.steps_for_callers([y], self._networks[number - 1].stack)
                y = drop(y) if drop else y
            part = states.of_layer(state, number, self.stack.directions) if last else state
            now = about if number == last else about._replace(output_states=False)
            if looped:
                y, final, *more = loop.run(network, own, y, part, now)
            else:
                h, *others = (None,) if part is None else part
                y, final, *more = call(network, now, y, h, others or None, own)
            finals.append(final)
        if not last:
            return y, final, *more
        equal = [len(set(own)) == 1 for own in (self.stack.state_sizes if looped else self.stack.state_widths)]
        equal = equal if self.stack.has_narrow else equal[-1:] * len(equal)  # a projected h as c
        pairs = zip(zip(*finals, strict=True), equal, strict=True)
        return [y, tuple(torch.cat(parts) if same else list(parts) for parts, same in pairs), *more]


class Computed:
    """The common part of modules with a `Computation`, which they make in `_set_up` from their current attributes."""

    @property
    def named(self) -> NamedTensors:
        """The parameters by the names in the cell's equations: `module.named["R.f"]` is a view of the parameter.
        Gradients flow through the view; `module.named.grad["R.f"]` is its gradient. See `NamedTensors`."""
        return NamedTensors(self)

    def flatten_parameters(self) -> None:
        """Make the parameters views of one flat buffer again, which saves a copy per call.

        New modules are in this form; `.to(...)`, copies and `load_state_dict` leave them so. Call it after
        `p.data = ...`."""
        self._computation.flat.flatten(self)

    def _start_anew(self):
        self._set_up()
        self.flatten_parameters()

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        told, own = local_metadata.get("cell"), self._told_cell()
        if told is not None and own is not None and told != own:
            differs = "has other equations" if told[0] == own[0] else f"is {own[0]!r}"
            args[-1].append(
                f"{prefix or 'the state dict'} is of a module of cell {told[0]!r}, but this one's {differs}"
            )
        self._computation.take_apart_or_join(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        if local_metadata.get("assign_to_params_buffers"):
            self.flatten_parameters()

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._told_cell() is not None and hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["cell"] = self._told_cell()

    def _told_cell(self):
        """Return (name, digest of the equations) of a custom cell, which a state dict's metadata tell; else None."""
        cell = self._computation.stack.cell
        return (cell.name, cell.digest) if hasattr(cell, "digest") else None

    def _as_leaf(self, input, *more, **options):
        """Return the call as one node of a `torch.fx` graph, as for torch.nn's modules."""
        path = input.tracer.path_of_module(self)
        return input.tracer.create_proxy("call_module", path, (input, *more), options)

    def __prepare_scriptable__(self):  # torch.jit.script asks for it
        raise NotImplementedError(
            "torch.jit.script cannot read numbarnn's modules: use torch.jit.trace or torch.export.export, or return to "
            "torch.nn's with numbarnn.torch.restore(model)"
        )

    def __getstate__(self):
        return {name: value for name, value in vars(self).items() if name not in ("_computation", "_flat_weight_refs")}

    def __setstate__(self, state):
        torch.nn.Module.__setstate__(self, state)
        self._start_anew()


def time_first(x):
    """Return x (B, T, I) as contiguous (T, B, I): a view, or a copy that both passes share."""
    return x.transpose(0, 1).contiguous()


def form_of(private, batch_first, x, hx, weights):
    """Return all that checks of a call read, and where the parameters are; None if such calls are not remembered.

    Remembered are calls on the CPU that go straight to the engine (`goes_by_operators`), with x of three dimensions,
    without autocast, forward mode and random numbers. private: number of cell states besides h. x, hx: not checked."""
    if goes_by_operators(x, weights) or not x.is_cpu or x.is_nested or x.dim() != 3:
        return None
    if torch.is_autocast_enabled("cpu") or is_in_forward_mode():
        return None
    form = [batch_first, x.shape, x.dtype, weights[0].dtype, weights[0].is_cpu]
    if hx is not None:
        state = hx if private else (hx,)
        if not isinstance(state, tuple | list) or len(state) != 1 + private:
            return None
        for one in state:
            if type(one) not in PLAIN:
                return None
            form += one.shape, one.dtype, one.is_cpu
    form += [weight.data_ptr() for weight in weights if weight.is_contiguous()]
    return form


def _options_by_layer(options, whole):
    """Return [layer] -> options of a stack of that layer alone."""
    return [
        options | {
            "input_size": whole.directions * whole.output_sizes[layer - 1] if layer else whole.input_size,
            "hidden_size": hidden, "num_layers": None, "input_mode": "linear" if layer else whole.input_mode,
        }
        for layer, hidden in enumerate(whole.hidden_sizes)
    ]  # fmt: skip
