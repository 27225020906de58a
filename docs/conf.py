# Copyright 2026 The modeling_ode_transformer authors. Licensed under the Apache License, Version 2.0.
"""The site: `make docs`. Pages are Markdown, which a forge shows too; API pages come from the docstrings."""

import modeling_ode_transformer


project = "modeling_ode_transformer"
author = "The modeling_ode_transformer authors"
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
