"""Networks that compute a module, from its sizes and options and its flat buffer of parameters."""

import math

import torch

from numbarnn.layers import private
from numbarnn.programs.states import with_each
from numbarnn.torch import checks, core, loop
from numbarnn.torch.calls import (
    MAX_SEED,
    PLAIN,
    call,
    engine_call,
    goes_by_operators,
    is_in_forward_mode,
    requires_grad,
)
from numbarnn.torch.networks import Network
from numbarnn.torch.parameters import NamedTensors, flatten


class Computation:
    """The networks that compute a module.

    One network computes all layers. There is one network per layer if layers differ in size, and with dropout between
    them, which torch draws: after the same `torch.manual_seed`, torch.nn's modules drop the same elements.

    Args:
        options: arguments of `Network`. by_layer: make one network per layer.
        suffix: the end of the network's parameter names that the module's names lack: "_l0" for a single step.

    Attributes:
        space: the `WeightSpace` of all parameters. stack: the `Stack` of all layers.
        shapes, bounds: name -> shape of each parameter, and bound of its first values, 1/√H, in torch.nn's order.
        layers: [layer and direction] -> names of its parameters. names: [network] -> names of its parameters.
        dropout: the probability that networks apply by themselves. loop: compute by `numbarnn.torch.loop`.
    """

    def __init__(self, options, by_layer=False, suffix=""):
        self.loop = options.get("schedule") == "loop"
        options = options | {"schedule": "auto"} if self.loop else options
        network = Network(**options)
        whole = self.stack = network.stack
        self.by_layer = by_layer or not (self.loop or whole.equal_widths)
        self._networks = [Network(**one) for one in _options_by_layer(options, whole)] if self.by_layer else [network]
        self.dropout, self.space, self.suffix = whole.dropout, network.space, suffix
        self._repeats = network.remembers and not (self.by_layer or self.loop or whole.has_narrow)
        places = {part.name.removesuffix(suffix): part for part in network.parts}
        self.shapes = {name.removesuffix(suffix): shape for name, shape in self.space.shapes.items()}
        self.bounds = {name: 1.0 / math.sqrt(whole.hidden_sizes[places[name].layer]) for name in self.shapes}
        self.layers = [
            [name for name in self.shapes if (places[name].layer, places[name].direction) == (layer, direction)]
            for layer in range(whole.num_layers) for direction in range(whole.directions)
        ]  # fmt: skip
        self.names = []
        for layer, own in enumerate(self._networks):
            ending = f"_l{layer}" if self.by_layer else "_l0"
            self.names.append([part.name.replace("_l0", ending).removesuffix(suffix) for part in own.parts])

    def weights(self, module):
        """Return [network] -> the parameters that the module has now, in the order of its weight space."""
        held = module._parameters
        try:
            return [[held[name] for name in group] for group in self.names]
        except KeyError:  # parametrized, pruned, or a replica's on another device
            return [[getattr(module, name) for name in group] for group in self.names]

    def initial(self):
        """Yield (name, first element, last, value) of the parameters whose initial values the cell's equations define.
        PyTorch's generator draws them anew each time."""
        if self.stack.cell.initial:
            key = int(torch.randint(MAX_SEED, ()))
            for part, where, value in self.space.initial(self.stack.cell.initial, key):
                yield part.name, where.start - part.offset, where.stop - part.offset, value

    def take_apart_or_join(self, state_dict, prefix):
        """Give a state dict this module's parameters, if it has those of a module with the other `split`."""
        whole, pieces = self.stack.space, self.stack.space.split().parameters
        for part in whole.parameters:
            name = f"{prefix}{part.name.removesuffix(self.suffix)}"
            inside = [one for one in pieces if part.offset <= one.offset < part.offset + part.size]
            names = [f"{prefix}{one.name}" for one in inside]
            if name in names:  # both have this parameter
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
        """Return the form of a call (`form_of`), and its results if the last call had the same form, else None.

        For calls without lengths, resets and output states. On small inputs Python takes longer to check a call than
        the engine to compute it. A call with the last one's form passes the same checks and needs the same plans and
        weights; only the numbers in its arrays differ."""
        if not self._repeats:
            return None, None
        network, weights = self._networks[0], self.weights(module)[0]
        form, (last, known) = form_of(network.private, batch_first, x, hx, weights), network.last_call
        if form is None or form != last:
            return form, None
        x = time_first(x) if batch_first else x
        h, c = (hx, None) if hx is None or not network.private else hx
        keep = torch.is_grad_enabled() and requires_grad(x, h, c, weights)
        prepared = known.get(keep)
        if prepared is None:
            prepared = core.prepare(network, core.CallSettings(), x, h, weights, keep)
            if prepared.weights is network.last_weights[1]:  # not a copy of the parameters
                known[keep] = prepared
        y, h, c, _ = engine_call(prepared, keep, x, h, c, weights)
        return form, (y.transpose(0, 1) if batch_first else y, (h, c) if network.private else h)

    def run(self, module, x, state, settings, batch_first=False, drop=None, form=None):
        """Return (y, the final state, with `output_states` the cell states of every step).

        x: (T, B, I), or (B, T, I) with `batch_first`. state: from `checks.state_of`, or None. drop: f(y of a layer) ->
        the next layer's input, or None. form: from `again`."""
        # Steps are computed time first, and y is a view with batch first, as torch.nn returns it: random numbers that
        # are drawn in the form of y, for a Dropout after the module for instance, are the same then.
        if batch_first:
            resets = None if settings.resets is None else torch.as_tensor(settings.resets).transpose(0, 1)
            settings = settings._replace(resets=resets)
            y, state, *more = self.run(module, time_first(x), state, settings, False, drop, form)
            return y.transpose(0, 1), state, *with_each(more, lambda value: value.transpose(0, 1))
        weights, stack, network = self.weights(module), self.stack, self._networks[0]
        first = weights[0][0]
        if x.dtype is not first.dtype or x.shape[2] != stack.input_size or x.device != first.device or not x.numel():
            x, state = checks.fitted_input(stack.input_size, x, state, first)
        if state is not None:
            checks.sizes_of_state(stack, state, x)
        settings = settings if x.shape[1] else settings._replace(training=False)
        if self.loop or not x.shape[1]:  # of no sequences PyTorch's own operations make gradients of 0
            y, state, *every = self._through(weights, x, state, settings, drop, loop.run, stack.state_sizes)
        else:
            if state is not None and stack.has_narrow:
                state = private.for_engines(torch, state, stack)
            y, state, *every = self._through(weights, x, state, settings, drop, _by_engine, stack.state_widths)
            if form and network.last_call[0] != form:
                network.last_call = form, {}  # whether backward may follow -> `core.PreparedCall`
            if stack.has_narrow:
                (y,), state = private.steps_for_callers([y], stack), private.for_callers(torch, state, stack)
                every = [private.steps_for_callers(one, stack, first=1) for one in every]
        return y, state if len(state) > 1 else state[0], *every

    def _through(self, weights, x, state, settings, drop, compute, sizes):
        """Return [y, state, with `output_states` the cell states of every step] through all networks.

        compute: the function of one network. sizes: [state][layer] -> its units."""
        y, finals, stack, last = x, [], self.stack, len(self._networks) - 1
        for number, (network, own) in enumerate(zip(self._networks, weights, strict=True)):
            if number:
                (y,) = private.steps_for_callers([y], self._networks[number - 1].stack)
                y = drop(y) if drop else y
            part = _of_layer(state, number, stack.directions) if last else state
            now = settings if number == last else settings._replace(output_states=False)
            y, final, *more = compute(network, own, y, part, now)
            finals.append(final)
        if not last:
            return y, final, *more
        equal = [len(set(own)) == 1 for own in sizes]
        equal = equal if stack.has_narrow else equal[-1:] * len(equal)  # a projected h as c
        pairs = zip(zip(*finals, strict=True), equal, strict=True)
        return [y, tuple(torch.cat(parts) if same else list(parts) for parts, same in pairs), *more]


def _by_engine(network, weights, x, state, settings):
    """Run one network by `calls.call`, with the arguments of `loop.run`."""
    h, *others = (None,) if state is None else state
    return call(network, settings, x, h, others or None, weights)


def _of_layer(state, layer, directions):
    """Return one layer's part of a state; None of None."""
    if state is None:
        return None
    rows = slice(layer * directions, (layer + 1) * directions)
    return tuple(one[rows] if isinstance(one, torch.Tensor) else one[layer] for one in state)


def time_first(x):
    """Return x (B, T, I) as contiguous (T, B, I): a view, or a copy that both passes share."""
    return x.transpose(0, 1).contiguous()


def form_of(private, batch_first, x, hx, weights):
    """Return all that checks of a call read, and where the parameters are; None if such calls are not remembered.

    Calls are remembered if they run on the CPU and go straight to the engine (`goes_by_operators`), with x of three
    dimensions, without autocast, forward mode and random numbers. private: number of cell states besides h. x, hx: not
    checked yet."""
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
        flatten(self, [name for group in self._computation.names for name in group])

    def _start_anew(self):
        self._set_up()
        self.flatten_parameters()

    def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
        saved, own = local_metadata.get("cell"), self._cell_identity()
        if saved is not None and own is not None and saved != own:
            differs = "has other equations" if saved[0] == own[0] else f"is {own[0]!r}"
            args[-1].append(
                f"{prefix or 'the state dict'} is of a module of cell {saved[0]!r}, but this one's {differs}"
            )
        self._computation.take_apart_or_join(state_dict, prefix)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)
        if local_metadata.get("assign_to_params_buffers"):
            self.flatten_parameters()

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if self._cell_identity() is not None and hasattr(destination, "_metadata"):
            destination._metadata[prefix[:-1]]["cell"] = self._cell_identity()

    def _cell_identity(self):
        """Return (name, digest of the equations) of a custom cell, for a state dict's metadata; else None."""
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
