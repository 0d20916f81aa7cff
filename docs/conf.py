"""The documentation site: ``make docs``, or ``sphinx-build -W --keep-going docs build/site``; needs no network."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

import nmf_zoo

project = "nmf_zoo"
author = "nmf_zoo contributors"
copyright = author
version = release = nmf_zoo.__version__

extensions = [
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "numpydoc",
    "myst_nb",
    "house_style",
    "command_line",
    "mathml",
    "links",
]
exclude_patterns = ["extensions", "**/.ipynb_checkpoints"]

# Tutorials are shown with the outputs that were kept (python -m notebooks.run makes them): nothing runs here.
nb_execution_mode = "off"
nb_merge_streams = True
myst_enable_extensions = ["dollarmath", "colon_fence", "deflist"]
myst_heading_anchors = 3

autosummary_generate = True
autodoc_typehints = "none"  # the docstrings say it in words
autodoc_preserve_defaults = True
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 88
smartquotes = False  # "log" is what one types
templates_path = ["templates"]

html_theme = "pydata_sphinx_theme"
html_title = "nmf_zoo"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_theme_options = {
    "logo": {"text": "nmf_zoo"},
    "navbar_align": "left",
    "show_toc_level": 2,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "monokai",
}
html_sidebars = {"index": [], "contributing": ["sidebar-nav-bs"], "**": ["sidebar-nav-bs"]}
