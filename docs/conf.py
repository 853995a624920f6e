"""Sphinx settings; `make docs` builds with warnings as errors."""

from importlib.resources import files

from gossamer import __version__

project = "Gossamer"
author = "The Gossamer developers"
copyright = "The Gossamer developers"
release = version = __version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.doctest", "sphinx.ext.mathjax", "myst_parser"]
myst_enable_extensions = ["dollarmath", "deflist"]
myst_heading_anchors = 3
# Formulas are drawn by MathJax, from a copy that is part of the pages: they are read without a network.
mathjax_path = "tex-svg.js"
html_theme = "furo"
html_static_path = ["static", str(files("sphinx-mathjax-offline") / "static" / "mathjax" / mathjax_path)]
html_css_files = ["gossamer.css"]
html_title = f"Gossamer {__version__}"
exclude_patterns = ["_build"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
napoleon_google_docstring = True
doctest_global_setup = "import gossamer as gs"
