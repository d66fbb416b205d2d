"""A hook of mkdocs: links from the pages to source files become plain text, since the site does not
contain them.
"""

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Return the page without links that lead out of ``docs/``."""
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", markdown)
