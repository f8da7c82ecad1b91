"""The documentation: `python -m sphinx notebooks site` (pip install -e ".[docs]").

Notebooks, and the Python of pages, are executed for the site, which takes some minutes; what came out is kept in
.jupyter_cache, and only what has changed is executed again. `-D nb_execution_mode=off` shows text and code alone. What
imports a package that is not installed is not executed. The tests build the site of the notebooks that they have run.

Formulas become MathML when a page is written: it needs no script, no font and no network to show them.
"""

import ast
import re
import sys
import textwrap
from importlib.util import find_spec
from pathlib import Path

import nbformat
from docutils import nodes
from latex2mathml.converter import convert
from sphinx.util import logging

sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
import numbarnn  # noqa: E402


def as_jupyter_does(title):
    """A heading's anchor, such that links within a notebook lead somewhere in Jupyter and here."""
    return title.replace(" ", "-")


PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
IMPORT = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)


def lacks(*code):
    """Whether code imports a package that is not installed."""
    return any(find_spec(name) is None for one in code for name in IMPORT.findall(one))


def read_page(text):
    """A page of Markdown as a notebook whose cells are its blocks of Python, so that the site shows what comes out."""
    cells, lines, place = [], [], 0
    for block in PYTHON.finditer(text):
        cells += [
            nbformat.v4.new_markdown_cell(text[place : block.start()]),
            nbformat.v4.new_code_cell(block[1].rstrip()),
        ]
        lines += [text[:place].count("\n"), text[: block.start()].count("\n")]
        place = block.end()
    cells.append(nbformat.v4.new_markdown_cell(text[place:]))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    about = {"kernelspec": kernel, "source_map": [*lines, text[:place].count("\n")]}
    if not lines or lacks(*PYTHON.findall(text)):
        about["mystnb"] = {"execution_mode": "off"}
    return nbformat.v4.new_notebook(cells=cells, metadata=about)


project, author, copyright = "numbarnn", "The numbarnn founders", "the numbarnn founders"
version = release = numbarnn.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]
exclude_patterns = ["_build", "**.ipynb_checkpoints"]
html_theme = "furo"
html_title = "numbarnn"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_math_renderer = "mathml"

myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
myst_heading_slug_func = "conf.as_jupyter_does"
nb_custom_formats = {".md": "conf.read_page"}
nb_execution_mode = "cache"
nb_execution_in_temp = True  # some write files
nb_execution_excludepatterns = [
    path.name
    for path in Path(__file__).parent.glob("*.ipynb")
    if lacks(*(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code"))
]
nb_execution_timeout = 300
nb_execution_raise_on_error = True
nb_merge_streams = True  # a line of progress that is written again and again is one line

# Docstrings are Google's form, with plain words and `names` in single quotes, as one reads them in help().
default_role = "code"
napoleon_google_docstring, napoleon_numpy_docstring = True, False
napoleon_use_ivar = True
napoleon_custom_sections = [("Returns", "params_style")]  # several results, each with its name
autodoc_member_order = "bysource"
autodoc_typehints = "none"


def _set_indented_text_as_it_is(app, what, name, thing, options, lines):
    """Tables and code stand indented in our docstrings, after an empty line: as they are, for reStructuredText."""
    result, before, rest = [], 0, list(lines)
    while rest:
        line = rest.pop(0)
        indent = _indent(line)
        if line.strip() and indent > before and result and not result[-1].strip():
            block = [line]
            while rest and (not rest[0].strip() or _indent(rest[0]) >= indent):
                block.append(rest.pop(0))
            result += [f"{' ' * before}.. code-block:: {_language(block)}", "", *block, ""]
            continue
        if line.strip() == "Returns:" and not re.match(r" +[\w, ]+: ", rest[0]):
            line = line.replace("Returns", "Return")  # one result without a name
        result.append(re.sub(r": ([A-Z])\.$", r": \1", line))  # or else "I." begins a numbered list
        before = indent if line.strip() else before
    lines[:] = result


def _indent(line):
    return len(line) - len(line.lstrip())


def _language(block):
    try:
        ast.parse(textwrap.dedent("\n".join(block)))
    except SyntaxError:
        return "text"
    return "python"


# latex2mathml's MathML -> what looks right in a browser without a font for formulas, too.
_MENDED = (
    # a prime as a superscript is raised twice
    (
        r"<msup>(<mi>[^<]*</mi>)<m([io])>&#x02032;</m\2></msup>",
        r"<mrow>\1<mo lspace='0' rspace='0'>&#x02032;</mo></mrow>",
    ),
    # letters as such, not as the signs for them, of which text fonts lack some; wide.css sets them in italics
    (r"<mi>([A-Za-z]|&#x003[9A-C][0-9A-F];)</mi>", r'<mi class="letter">\1</mi>'),
    (r"<mo>&#x0002B;</mo><mo>&#x0003D;</mo>", r"<mo>+=</mo>"),
    # a thin space around log x
    (r"(?<=</mi>|</mn>)(<mi>(?:tanh|log|ln|min)</mi>)", r'<mspace width="0.17em"/>\1'),
    (r"(?<!<msu[bp]>)(<mi>(?:tanh|log|ln)</mi>)(?=<m(?:i|n|sub|sup|row)\b)", r'\1<mspace width="0.17em"/>'),
)


def _write_formula(page, node):
    """A formula as MathML. What \\tag says stands beside it."""
    text, tag = node.astext(), ""
    if found := re.search(r"\\tag\{(.*?)\}", text):
        text, tag = text.replace(found[0], ""), f'<span class="eqno">({found[1]})</span>'
    block = isinstance(node, nodes.math_block)
    # latex2mathml makes an operator in an operator of \\mathrel
    formula = convert(re.sub(r"\\mathrel\{(.)\}", r"\1", text), display="block" if block else "inline")
    if unknown := re.findall(r"(?:\\|&#x0*5C;)\w+", formula):
        logging.getLogger(__name__).warning("latex2mathml does not know %s", ", ".join(unknown), location=node)
    for wrong, right in _MENDED:
        formula = re.sub(wrong, right, formula)
    page.body.append(f'<div class="math">{tag}{formula}</div>' if block else f'<span class="math">{formula}</span>')
    raise nodes.SkipNode


def setup(app):
    app.add_html_math_renderer("mathml", (_write_formula, None), (_write_formula, None))
    app.connect("autodoc-process-docstring", _set_indented_text_as_it_is, priority=400)  # before napoleon reads them
