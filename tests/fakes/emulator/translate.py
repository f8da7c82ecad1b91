"""Basic blocks of PTX as Python functions over NumPy arrays.

A function has the arguments (R, S, m, merge): the registers that live on between blocks, the `machine.Grid`, the
threads that take part (None for all), and whether other threads' registers must be kept.
"""

import re

import numpy as np

from emulator import arithmetic
from emulator.program import NO_EFFECT, SPECIAL, Program, registers_between_blocks

_CODES = {
    **{f"{letter}{bits}": f"u{bits // 8}" for letter in "ub" for bits in (8, 16, 32, 64)},
    **{f"s{bits}": f"i{bits // 8}" for bits in (8, 16, 32, 64)},
    "f16": "f2", "f32": "f4", "f64": "f8", "pred": "?",
}  # fmt: skip
_WIDER = {"i4": "i8", "u4": "u8", "i2": "i4", "u2": "u4"}
_SIGNS = {"add": "+", "sub": "-", "mul": "*", "and": "&", "or": "|", "xor": "^"}
_SPACES = {"global", "shared", "local", "param", "const"}


def translate(text):
    """(Program, one function per block, NumPy step_mask of the registers that live on)."""
    program = Program(text)
    lives = registers_between_blocks(program)
    source, names = [], {"np": np, "A": arithmetic, "where": np.where}
    for number, block in enumerate(program.blocks):
        source += _Writer(program, lives, names).function(number, block)
    exec(compile("\n".join(source), f"<{program.entry[:40]}>", "exec"), names)
    functions = [names[f"block_{number}"] for number in range(len(program.blocks))]
    return program, functions, [program.code_of(register) for register in lives]


class _Writer:
    """Writes one block's function."""

    def __init__(self, program, lives, names):
        self.program, self.lives, self.names = program, lives, names
        self.lines, self.known, self.changed = [], set(), []

    def function(self, number, block):
        for instruction in block.instructions:
            self.guard, self.instruction = None, instruction
            if instruction.ends_block:
                break
            if instruction.name in NO_EFFECT:
                continue
            try:
                if instruction.guard:
                    self._set_guard(instruction.guard)
                getattr(self, f"_{instruction.name}", self._unknown)(instruction.modifiers, *instruction.operands)
            except (KeyError, TypeError) as error:
                raise NotImplementedError(f"{instruction.text}: {error!r}") from error
        returned = "None"
        if block.last is not None and block.last.guard:
            returned = self._predicate(*block.last.guard)
        if self.changed:
            self.lines.append("if merge:")
            self.lines += [f"    R[{self.lives[n]}] = where(m, {_python(n)}, R[{self.lives[n]}])" for n in self.changed]
            self.lines.append("else:")
            self.lines += [f"    R[{self.lives[n]}] = {_python(n)}" for n in self.changed]
        return [
            f"def block_{number}(R, S, m, merge):",
            *[f"    {line}" for line in self.lines],
            f"    return {returned}",
        ]

    def _unknown(self, *_):
        raise NotImplementedError(self.instruction.text)

    # ------------------------------------------------------------------------------------------------ operands
    def _register(self, name):
        """The Python variable of a register that is read."""
        if name in self.lives and name not in self.known:
            self.lines.append(f"{_python(name)} = R[{self.lives[name]}]")
            self.known.add(name)
        return _python(name)

    def _value(self, operand, code):
        """An expression for an operand as numbers of a NumPy code."""
        program = self.program
        if operand.startswith("!"):
            return f"~{self._register(operand[1:])}"
        if program.is_register(operand):
            name, own = self._register(operand), program.code_of(operand)
            if own == code:
                return name
            if _size(own) == _size(code):
                return f"{name}.view('{code}')"
            return f"{name}.astype('u{_size(code)}').view('{code}')"
        if SPECIAL.match(operand):
            return f"S.special['{operand}'].astype('{code}')"
        if operand in program.variables:
            return f"S.address_of('{operand}').astype('{code}')"
        return self._constant(operand, code)

    def _constant(self, operand, code):
        if match := re.fullmatch(r"0([fFdD])([0-9A-Fa-f]+)", operand):
            bits, own = int(match.group(2), 16), {"f": np.uint32, "d": np.uint64}[match.group(1).lower()]
            number = own(bits).view(np.float32 if own is np.uint32 else np.float64)
            number = number if code in ("f4", "f8") else number.view(code)
            value = number.astype(code)
        elif code == "?":
            value = np.bool_(int(operand, 0))
        else:
            size = _size(code)
            value = np.array([int(operand, 0) % (1 << 8 * size)], f"u{size}").view(code)[0]
        name = f"K_{len(self.names)}"
        self.names[name] = value
        return name

    def _address(self, operand):
        found = re.fullmatch(r"\[\s*([%\w$]+)\s*(?:\+\s*(-?\w+))?\s*\]", operand)
        base, offset = found.groups()
        if self.program.is_register(base):
            text = self._register(base)
            text = text if self.program.code_of(base) == "u8" else f"{text}.astype('u8')"
        else:
            text = self._value(base, "u8")
        return text if offset is None else f"({text} + {self._constant(offset, 'u8')})"

    def _predicate(self, register, negated):
        return f"~{self._register(register)}" if negated else self._register(register)

    def _set_guard(self, guard):
        self.guard = f"guard_{len(self.lines)}"
        self.lines.append(f"{self.guard} = S.both(m, {self._predicate(*guard)})")

    @property
    def _mask(self):
        return self.guard or "m"

    @property
    def _opcode(self):
        return repr(".".join([self.instruction.name, *self.instruction.modifiers]))

    def _set(self, register, expression, code):
        """register = expression, which has a code; smaller numbers are widened by their sign or by zeros."""
        if register in ("_", "%_"):
            return
        own = self.program.code_of(register)
        if code != own:
            if _size(code) < _size(own):
                expression = f"({expression}).astype('{'i' if code[0] == 'i' else 'u'}{_size(own)}')"
                code = expression[-4:-2]
            if code != own:
                expression = f"({expression}).view('{own}')"
        if self.guard:
            expression = f"where({self.guard}, {expression}, {self._register(register)})"
        self.lines.append(f"{_python(register)} = {expression}")
        self.known.add(register)
        if register in self.lives and register not in self.changed:
            self.changed.append(register)

    # ---------------------------------------------------------------------------------------------- arithmetic
    def _two(self, modifiers, result, a, b):
        code = _CODES[modifiers[-1]]
        name = self.instruction.name
        a, b = self._value(a, code), self._value(b, code)
        if name in _SIGNS:
            text = f"({a}) {_SIGNS[name]} ({b})"
        elif name in ("min", "max"):
            text = f"np.{'f' if code[0] == 'f' else ''}{name}{'' if code[0] == 'f' else 'imum'}({a}, {b})"
        elif code[0] == "f":
            text = f"({a}) / ({b})"
        else:
            text = f"A.{'quotient' if name == 'div' else 'remainder'}({a}, {b})"
        self._set(result, text, code)

    _sub = _and = _or = _xor = _min = _max = _div = _rem = _two

    def _add(self, modifiers, *operands):
        (self._with_carry if "cc" in modifiers else self._two)(modifiers, *operands)

    def _mul(self, modifiers, result, a, b):
        code = _CODES[modifiers[-1]]
        if "wide" in modifiers:
            wider = _WIDER[code]
            a, b = (f"{self._value(x, code)}.astype('{wider}')" for x in (a, b))
            self._set(result, f"{a} * {b}", wider)
        elif "hi" in modifiers and _size(code) == 8:
            self._set(result, f"A.high_half({self._value(a, code)}, {self._value(b, code)})", code)
        elif "hi" in modifiers:
            wider = _WIDER[code]
            a, b = (f"{self._value(x, code)}.astype('{wider}')" for x in (a, b))
            self._set(result, f"(({a} * {b}) >> np.{_numpy(wider)}({8 * _size(code)})).astype('{code}')", code)
        else:
            self._two(modifiers, result, a, b)

    def _mad(self, modifiers, result, a, b, c):
        if "cc" in modifiers:
            self._with_carry(modifiers, result, a, b, c)
            return
        code = _CODES[modifiers[-1]]
        wider = _WIDER[code] if "wide" in modifiers else code
        a, b = (f"{self._value(x, code)}.astype('{wider}')" for x in (a, b))
        self._set(result, f"{a} * {b} + {self._value(c, wider)}", wider)

    def _with_carry(self, modifiers, result, a, b, c=None):
        """add.cc, addc, mad.lo.cc, madc.hi, ...: sums of 32 bits, whose carry the next instruction may add."""
        name = self.instruction.name
        a, b = (f"{self._value(x, 'u4')}.astype('u8')" for x in (a, b))
        if c is None:
            text = f"{a} + {b}"
        else:
            half = ">> np.uint64(32)" if "hi" in modifiers else "& np.uint64(0xFFFFFFFF)"
            text = f"(({a} * {b}) {half}) + {self._value(c, 'u4')}"
        if name.endswith("c"):
            if "carry" not in self.known:
                self._unknown()
            text += " + carry"
        self.lines.append(f"wide = {text}")
        if "cc" in modifiers:
            self.lines.append("carry = wide >> np.uint64(32)")
            self.known.add("carry")
        self._set(result, "wide.astype('u4')", "u4")

    _addc = _madc = _with_carry

    def _fma(self, modifiers, result, *operands):
        code = _CODES[modifiers[-1]]
        function = {"f4": "fma32_to_zero" if "rz" in modifiers else "fma32", "f8": "fma64"}[code]
        self._set(result, f"A.{function}({', '.join(self._value(x, code) for x in operands)})", code)

    def _one(self, modifiers, result, a):
        code = _CODES[modifiers[-1]]
        a, name = self._value(a, code), self.instruction.name
        one = {"f4": "np.float32(1)", "f8": "np.float64(1)"}.get(code)
        text = {
            "not": f"~({a})",
            "neg": f"-({a})",
            "abs": f"np.abs({a})",
            "rcp": f"{one} / ({a})",
            "sqrt": f"np.sqrt({a})",
            "ex2": f"np.exp2(({a}).astype('f8')).astype('{code}')",
        }[name]
        self._set(result, text, code)

    _not = _neg = _abs = _rcp = _sqrt = _ex2 = _one

    def _shl(self, modifiers, result, a, amount):
        code, left = _CODES[modifiers[-1]], self.instruction.name == "shl"
        a = self._value(a, code)
        if amount.isdigit() and int(amount) < 8 * _size(code):
            amount = self._constant(amount, code)
            self._set(result, f"({a}) {'<<' if left else '>>'} {amount}", code)
        else:
            self._set(result, f"A.shift({a}, {self._value(amount, 'u4')}, {left})", code)

    _shr = _shl

    def _prmt(self, modifiers, result, *operands):
        self._set(result, f"A.permute_bytes({', '.join(self._value(x, 'u4') for x in operands)})", "u4")

    def _bfi(self, modifiers, result, field, a, position, length):
        code = _CODES[modifiers[-1]]
        field, a = self._value(field, code), self._value(a, code)
        position, length = self._value(position, "u4"), self._value(length, "u4")
        self._set(result, f"A.insert_bits({field}, {a}, {position}, {length})", code)

    def _setp(self, modifiers, result, a, b, c=None):
        code = _CODES[modifiers[-1]]
        text = f"A.compare('{modifiers[0]}', {self._value(a, code)}, {self._value(b, code)})"
        if c is not None:
            text = f"{text} {_SIGNS[modifiers[1]]} {self._value(c, '?')}"
        first, *second = result.split("|")
        self._set(first, text, "?")
        if second:
            raise NotImplementedError(self.instruction.text)

    def _selp(self, modifiers, result, a, b, predicate):
        code = _CODES[modifiers[-1]]
        text = f"where({self._value(predicate, '?')}, {self._value(a, code)}, {self._value(b, code)})"
        self._set(result, text, code)

    # ------------------------------------------------------------------------------------ moves and conversions
    def _mov(self, modifiers, result, a):
        if isinstance(a, list):
            code = _CODES[modifiers[-1]]
            part = f"u{_size(code) // len(a)}"
            bits = 8 * _size(part)
            parts = [
                f"({self._value(x, part)}.astype('{code}') << np.{_numpy(code)}({bits * k}))" for k, x in enumerate(a)
            ]
            self._set(result, " | ".join(parts), code)
        elif isinstance(result, list):
            code = _CODES[modifiers[-1]]
            part = f"u{_size(code) // len(result)}"
            whole = self._value(a, code)
            for number, name in enumerate(result):
                shifted = f"({whole} >> np.{_numpy(code)}({8 * _size(part) * number})).astype('{part}')"
                self._set(name, shifted, part)
        else:
            code = _CODES[modifiers[-1]]
            self._set(result, self._value(a, code), code)

    def _cvta(self, modifiers, result, a):
        space = _space(modifiers)
        change = "to_space" if "to" in modifiers else "to_generic"
        self._set(result, f"S.{change}('{space}', {self._value(a, 'u8')})", "u8")

    def _cvt(self, modifiers, result, a):
        if "tf32" in modifiers:
            self._set(result, f"A.to_tf32({self._value(a, 'f4')})", "u4")
            return
        to, source = (_CODES[kind] for kind in modifiers[-2:])
        value, rounding = self._value(a, source), next((word for word in modifiers if word in arithmetic.ROUND), None)
        if source[0] == "f" and to[0] == "f" and rounding:
            self._set(result, f"A.ROUND['{rounding}']({value}).astype('{to}')", to)
        elif source[0] == "f" and to[0] != "f":
            self._set(result, f"A.to_integer({value}, np.{_numpy(to)}, '{rounding}')", to)
        else:
            self._set(result, f"{value}.astype('{to}')", to)

    # ------------------------------------------------------------------------------------------------- memory
    def _ld(self, modifiers, result, address):
        kind = _CODES[modifiers[-1]]
        space = _space(modifiers)
        if space == "param":
            self._set(result, f"S.parameter({address.strip('[]')!r}, '{kind}')", kind)
            return
        names = result if isinstance(result, list) else [result]
        values = f"loaded_{len(self.lines)}"
        address = self._address(address)
        self.lines.append(
            f"{values} = S.load('{space}', '{kind}', {address}, {self._mask}, {self._opcode}, {len(names)})"
        )
        for number, name in enumerate(names):
            self._set(name, f"{values}[{number}]", kind)

    def _st(self, modifiers, address, value):
        kind = _CODES[modifiers[-1]]
        space = _space(modifiers)
        values = [self._value(x, kind) for x in (value if isinstance(value, list) else [value])]
        address = self._address(address)
        self.lines.append(f"S.store('{space}', '{kind}', {address}, {self._mask}, {self._opcode}, {', '.join(values)})")

    def _atom(self, modifiers, result, address, value):
        if "add" not in modifiers:
            self._unknown()
        code = _CODES[modifiers[-1]]
        space = _space(modifiers)
        address, value = self._address(address), self._value(value, code)
        self._set(result, f"S.add('{space}', '{code}', {address}, {self._mask}, {self._opcode}, {value})", code)

    def _fence(self, modifiers):
        if "cta" not in modifiers:
            self.lines.append(f"S.fence({self._mask})")

    _membar = _fence

    # ---------------------------------------------------------------------------------------------------- whole warps
    def _bar(self, modifiers, _members):
        if modifiers[0] != "warp":
            self._unknown()
        self.lines.append(f"S.races.barrier({self._mask}, of_warp=True)")

    def _shfl(self, modifiers, result, a, b, limits, _members):
        first, *second = result.split("|")
        a, b, limits = (self._value(x, "u4") for x in (a, b, limits))
        pair = f"shuffled_{len(self.lines)}"
        self.lines.append(f"{pair} = A.shuffle('{modifiers[1]}', {a}, {b}, {limits}, S.lanes)")
        self._set(first, f"{pair}[0]", "u4")
        if second:
            self._set(second[0], f"{pair}[1]", "?")

    def _mma(self, modifiers, results, a, b, c):
        shape = next(word for word in modifiers if word.startswith("m16"))
        kind = modifiers[-2]
        a, b = ("[" + ", ".join(self._value(x, "u4") for x in group) + "]" for group in (a, b))
        c = "[" + ", ".join(self._value(x, "f4") for x in c) + "]"
        values = f"sums_{len(self.lines)}"
        self.lines.append(f"{values} = A.mma('{shape}', '{kind}', {a}, {b}, {c}, S.lanes)")
        for number, name in enumerate(results):
            self._set(name, f"{values}[{number}]", "f4")


def _python(register):
    return "r_" + re.sub(r"\W", "", register)


def _space(modifiers):
    return next((word for word in modifiers if word in _SPACES), "generic")


def _size(code):
    return 1 if code == "?" else int(code[1:])


def _numpy(code):
    return np.dtype(code).name
