"""PTX text as basic blocks of decoded instructions."""

import re
from dataclasses import dataclass, field

# Instructions that all lanes of a warp make together; those that end a basic block.
COLLECTIVE = {"shfl", "mma", "ldmatrix", "vote", "match"}
NO_EFFECT = {"prefetch", "nanosleep", "griddepcontrol"}  # on what is computed
_ENDS = {"bra", "ret", "exit", "bar", "barrier"}
SPECIAL = re.compile(r"%(?:n?tid|n?ctaid|laneid|warpid|dynamic_smem_size|clock64|globaltimer)\b")
REGISTER_CLASSES = {
    "pred": "?", "b16": "u2", "u16": "u2", "s16": "u2", "b32": "u4", "u32": "u4", "s32": "u4", "b64": "u8", "u64": "u8",
    "s64": "u8", "f32": "f4", "f64": "f8",
}  # fmt: skip


@dataclass
class Instruction:
    """`guard` is (register, negated) or None; an operand is a str or, for {a, b}, a list of str."""

    name: str
    modifiers: list
    operands: list
    guard: tuple | None
    text: str

    @property
    def is_collective(self):
        return self.name in COLLECTIVE or (self.name == "bar" and "warp" in self.modifiers)

    @property
    def sees_others(self):
        """Whether it reads memory in the hope that another thread has written it."""
        return self.name in ("ld", "atom") and bool({"relaxed", "acquire", "volatile"} & set(self.modifiers))

    @property
    def ends_block(self):
        return self.name in _ENDS and not self.is_collective and "arrive" not in self.modifiers


@dataclass
class Block:
    """Instructions that run one after another; the last one may jump, wait or end."""

    instructions: list = field(default_factory=list)

    @property
    def last(self):
        return self.instructions[-1] if self.instructions and self.instructions[-1].ends_block else None

    @property
    def is_collective(self):
        return any(instruction.is_collective for instruction in self.instructions)

    @property
    def sees_others(self):
        return any(instruction.sees_others for instruction in self.instructions)


class Program:
    """A PTX text's kernel.

    Attributes:
        entry: its symbol.
        parameters: [(name, bytes)].
        registers: name -> NumPy code of its bits, of those declared by name; prefixes: the same for `%r<5>`.
        variables: name -> (space, alignment, bytes, initial bytes or None); dynamic shared memory has 0 bytes.
        blocks: list of Block; labels: name -> number of the block.
    """

    def __init__(self, text):
        text = re.sub(r"//[^\n]*", "", text)
        head = re.search(r"\.entry\s+([\w$]+)\s*\((.*?)\)[^{;]*\{", text, re.DOTALL)
        if len(re.findall(r"\.(?:entry|func)\s", text)) != 1:
            raise NotImplementedError("more than one function in a PTX text")
        self.entry = head.group(1)
        self.parameters = _parameters(head.group(2))
        self.registers, self.prefixes, self.variables = {}, {}, {}
        self.labels, self.blocks = {}, [Block()]
        for statement in _statements(text[: head.start()], in_body=False):
            self._declare(statement)
        for statement in _statements(text[head.end() : text.rindex("}")], in_body=True):
            self._add(statement)
        if not self.blocks[-1].instructions:  # labels may stand before the final brace
            self.blocks[-1].instructions.append(Instruction("ret", [], [], None, "ret"))

    def code_of(self, register):
        """NumPy's code of a register's bits: "u4" for %r7."""
        if register in self.registers:
            return self.registers[register]
        prefix = re.match(r"%[A-Za-z_]+", register)
        if prefix and prefix.group() in self.prefixes:
            return self.prefixes[prefix.group()]
        raise NotImplementedError(f"register {register}")

    def is_register(self, operand):
        return operand in self.registers or bool(
            re.fullmatch(r"%[A-Za-z_]+\d+", operand) and not SPECIAL.match(operand)
        )

    def _add(self, statement):
        if statement.endswith(":"):
            if self.blocks[-1].instructions:
                self.blocks.append(Block())
            self.labels[statement[:-1]] = len(self.blocks) - 1
        elif statement.startswith("."):
            self._declare(statement)
        else:
            instruction = _decode(statement)
            self.blocks[-1].instructions.append(instruction)
            if instruction.ends_block or instruction.sees_others:
                self.blocks.append(Block())

    def _declare(self, statement):
        if found := re.match(r"\.reg\s+\.(\w+)\s+(.*)", statement, re.DOTALL):
            code = REGISTER_CLASSES[found.group(1)]
            for name in found.group(2).replace(" ", "").split(","):
                if ranged := re.match(r"(%[A-Za-z_]+)<\d+>", name):
                    self.prefixes[ranged.group(1)] = code
                else:
                    self.registers[name] = code
        elif found := re.search(
            r"\.(shared|local|const|global)\s+(?:\.align\s+(\d+)\s+)?\.([bus]\d+)\s+([\w$]+)(?:\[(\d*)\])?"
            r"(?:\s*=\s*\{(.*)\})?",
            statement,
            re.DOTALL,
        ):
            space, alignment, kind, name, count, values = found.groups()
            size = int(kind[1:]) // 8
            initial = None
            if values is not None:
                initial = b"".join((int(v, 0) % (1 << 8 * size)).to_bytes(size, "little") for v in values.split(","))
            num = 1 if count is None else int(count or 0)
            self.variables[name] = (space, int(alignment or size), size * num, initial)


def _statements(text, in_body):
    """Statements without their semicolons, labels with their colons; braces of scopes left out."""
    position = 0
    while position < len(text):
        if text[position].isspace() or (in_body and text[position] in "{}") or text[position] == ";":
            position += 1
        elif label := re.compile(r"[$\w]+:(?!:)").match(text, position):
            yield label.group()
            position = label.end()
        else:
            end = text.find(";", position)
            newline = text.find("\n", position)
            one_line = text.startswith((".version", ".target", ".address_size", ".pragma", ".loc", ".file"), position)
            if one_line and 0 <= newline and (end < 0 or newline < end):
                end = newline
            end = len(text) if end < 0 else end
            yield text[position:end].strip()
            position = end + 1


def _decode(statement):
    found = re.match(r"(?:@(!?)([%\w]+)\s+)?([\w.:]+)\s*(.*)$", statement, re.DOTALL)
    negated, guard, opcode, rest = found.groups()
    name, *modifiers = opcode.replace("::", ".").split(".")
    operands = [
        [part.strip() for part in operand[1:-1].split(",")] if operand[0] == "{" else operand.strip()
        for operand in re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s][^,]*", rest)
    ]
    return Instruction(
        name, modifiers, operands, (guard, bool(negated)) if guard else None, " ".join(statement.split())
    )


def _parameters(text):
    found = re.findall(r"\.param\s+(?:\.align\s+\d+\s+)?\.[bfsu](\d+)\s[^,\[]*?([\w$]+)(?:\[(\d+)\])?\s*(?:,|$)", text)
    return [(name, int(bits) // 8 * int(count or 1)) for bits, name, count in found]


def registers_between_blocks(program):
    """Register -> number, of those that some block reads before it writes them."""
    lives = {}
    for block in program.blocks:
        written = set()
        for instruction in block.instructions:
            results, sources = registers_of(program, instruction)
            read_first = [name for name in sources if name not in written]
            if instruction.guard:  # what is not written keeps its value
                read_first += [name for name in results if name not in written]
            for name in read_first:
                lives.setdefault(name, len(lives))
            written.update(results)
    return lives


def registers_of(program, instruction):
    """(registers that an instruction writes, those that it reads)."""
    operands = instruction.operands
    no_result = instruction.name in {"st", "bra", "ret", "exit", "bar", "barrier", "red", "membar", "fence", *NO_EFFECT}
    results = [] if no_result or not operands else operands[:1]
    sources = operands[len(results) :]

    def names(group):
        flat = [part for operand in group for part in (operand if isinstance(operand, list) else operand.split("|"))]
        found = [re.sub(r"[\[\]!]", "", part).split("+")[0].strip() for part in flat]
        return [name for name in found if program.is_register(name)]

    return names(results), names(sources) + ([instruction.guard[0]] if instruction.guard else [])
