# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The site: `make docs`. Pages are Markdown, which a forge shows too; API pages come from the docstrings."""

import modeling_ode_transformer


project = "modeling_ode_transformer"
author = "The modeling_ode_transformer authors"
html_title = project
copyright = f"2026, {author}"
release = modeling_ode_transformer.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build"]
html_theme = "furo"

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4  # links to headings, as a forge has them
myst_dmath_double_inline = True

# Docstrings say `code` with single quotes, as Markdown does.
default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True, "show-inheritance": True}
# transformers' and torch's docstrings are Markdown, or refer to their own sites.
autodoc_inherit_docstrings = False


def fences_as_blocks(app, what, name, obj, options, lines):
    """Fenced code of docstrings, which travels to the Hub as Markdown, as reStructuredText."""
    fenced, found = False, []
    for line in lines:
        if line.strip().startswith("```"):
            fenced = not fenced
            found += ["", ".. code-block:: python", ""] if fenced else [""]
        else:
            found.append(f"    {line}" if fenced else line)
    lines[:] = found


def setup(app):
    app.connect("autodoc-process-docstring", fences_as_blocks)
