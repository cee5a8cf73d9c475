"""Settings of the documentation's site; scripts/docs builds it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pygments.lexers.python import PythonLexer
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx

import torch_estimator

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

project = "torch-estimator"
author = "The torch-estimator authors"
copyright = author
version = release = torch_estimator.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "commands",
    "port_names",
    "reference",
]
exclude_patterns = ["_build", "extensions"]
nitpicky = False

# The reference. A name in single backquotes in a docstring is a link if the name is on a page.
default_role = "py:obj"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_type_aliases = {
    "OptimizerArgument": "str | OptimizerFactory",
    "OptimizerFactory": "OptimizerFactory",
}
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_attr_annotations = False
napoleon_use_ivar = True

myst_enable_extensions = ["attrs_block", "colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"torch-estimator {release}"
html_static_path = ["_static"]
html_css_files = ["pictures.css"]
html_show_sphinx = False

# Only what a reader types is copied: neither prompts nor the output below them.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
# What a program prints has no button.
copybutton_selector = "div:not(.highlight-output) > div.highlight > pre"


def _frame_pictures(app: Sphinx, doctree: Any) -> None:
    """Put each picture into an element of its own, which scrolls where the picture would be too small to read."""
    from docutils import nodes

    for raw in list(doctree.findall(nodes.raw)):
        if 'class="picture' in raw.astext():
            raw.replace_self(nodes.raw("", f'<div class="frame">{raw.astext()}</div>', format="html"))


def setup(app: Sphinx) -> None:
    """Name the languages of blocks that the tests treat differently: see tests/docs/pages.py."""
    app.connect("doctree-read", _frame_pictures)
    app.add_lexer("tensorflow", PythonLexer)
    app.add_lexer("output", TextLexer)
