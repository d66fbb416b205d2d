"""Put a page together: the templates, and what both kinds of page share."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from semigpc import text
from semigpc.files import write_text
from semigpc.report.wording import metric_name, number_of

FOLDED = 40  # tables with more rows start folded


def write_page(path: Path, template: str, context: dict[str, Any]) -> Path:
    """Fill a template and write it: one file with its style and drawings inside, which asks nothing of the network."""
    environment = Environment(
        loader=PackageLoader("semigpc.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number_of,
        percent=text.percent,
        points=text.points,
        count=text.count,
        duration=text.duration,
        metric=metric_name,
    )
    page = environment.get_template(template).render(folded=FOLDED, **context)
    write_text(path, page)
    return path
