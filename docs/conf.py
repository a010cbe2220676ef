"""The site, from the documents of the repository: `make site`."""

project = "repro-env"
author = "The repro-env authors"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**", "*.md", "benchmarks/README.md"]
exclude_patterns = ["docs/pictures/**", "build", "runs", ".*"]
html_theme = "furo"
smartquotes = False  # options keep their dashes
html_title = "repro-env"
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
myst_heading_anchors = 4
