"""The exercises of a notebook, by the tags of their cells; what an exercise is, says `numbarnn.course`."""

import re
from dataclasses import dataclass

TAGS = {"exercise", "check", "solution", "slow"}
FOLDED = re.compile(r"<details>\s*<summary>(?P<title>.*?)</summary>(?P<body>.*?)</details>", re.DOTALL)
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
STATUS = re.compile(r"^(right|not solved yet|wrong)\b", re.MULTILINE)


@dataclass(frozen=True)
class Exercise:
    """An exercise: where its cell is in the notebook, and the three texts of that cell.

    Attributes:
        index: of the cell to fill in; the check is the next one.
        solution: the cell solved, as it stands folded away.
        wrong: a wrong attempt, or None.
    """

    index: int
    solution: str
    wrong: str | None


def tags(cell):
    return set(cell.metadata.get("tags", ()))


def of_notebook(notebook):
    """The exercises of a notebook, in its order; an AssertionError where their cells are not as they should be."""
    cells, found = notebook.cells, []
    for index, cell in enumerate(cells):
        if "exercise" in tags(cell):
            check, folded = cells[index + 1 : index + 3]
            assert cell.cell_type == check.cell_type == "code" and "check" in tags(check), f"cell {check.id}"
            assert folded.cell_type == "markdown" and "solution" in tags(folded), f"cell {folded.id}"
            blocks = code_blocks(folded.source)
            assert len(blocks["Solution"]) == 1 and set(blocks) >= {"Hint"}, f"cell {folded.id}"
            wrong = blocks.get("A wrong turn")
            found.append(Exercise(index, blocks["Solution"][0], wrong[0] if wrong else None))
    for tag in ("check", "solution"):
        assert sum(tag in tags(cell) for cell in cells) == len(found), f"a cell with the tag {tag} has no exercise"
    return found


def code_blocks(source):
    """Title -> blocks of code, of what is folded away in a markdown cell."""
    unfolded = FOLDED.sub("", source)
    assert "details>" not in unfolded and "```" not in unfolded, unfolded
    return {
        match["title"].rstrip(" 0123456789"): [block["code"] for block in BLOCK.finditer(match["body"])]
        for match in FOLDED.finditer(source)
    }


def statuses(cell):
    """What the checks of an executed cell said: "right", "not solved yet" or "wrong", one for each."""
    text = "".join(output.get("text", "") for output in cell.outputs if output.output_type == "stream")
    return STATUS.findall(text)
