"""Build the documentation site: ``python docs/build_site.py FOLDER``, which ``make docs`` calls.

The pages are copied and completed first. Links from them to source files become plain text, since
the site does not contain these; the names of the package are added to api.md; the notebook of
examples becomes a page. Then zensical builds the site, with every warning an error.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
CONFIG = "zensical.toml"
NOTEBOOK = ROOT / "examples" / "label_photos.ipynb"
NAMES_HERE = "<!-- the public names of semigpc are inserted here by docs/build_site.py -->"
COPIED = (".css", ".json", ".md", ".png", ".svg")
# ``:class:`name```, as Sphinx writes it, in pages that were built
ROLE = re.compile(r":(?:attr|class|data|func|meth|mod):\s*(?=<code>)")
ANSI = re.compile(r"\x1b\[[0-9;]*m")


def page_of(text: str) -> str:
    """Return a page without links that lead out of ``docs/``, but to the notebook; their text
    stays.
    """
    text = text.replace("(../examples/label_photos.ipynb)", "(label_photos.md)")
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]+\)", r"\1", text)


def public_names() -> list[str]:
    """Return ``__all__`` of the package, read without importing it."""
    tree = ast.parse((ROOT / "src" / "semigpc" / "__init__.py").read_text())
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return sorted(ast.literal_eval(node.value), key=str.lower)
    raise ValueError("semigpc/__init__.py has no __all__.")


def notebook_page(path: Path) -> str:
    """Return a notebook as Markdown: its text, its code and what the code printed."""
    parts = []
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace("](../docs/", "]("))
            continue
        parts.append(f"```python\n{source}\n```")
        printed = "".join(map(_printed, cell["outputs"]))
        if printed:
            parts.append(f"```text\n{printed.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def _printed(output: dict[str, object]) -> str:
    """Return the plain text of one output of a cell."""
    data = output.get("data")
    text = data.get("text/plain", "") if isinstance(data, dict) else output.get("text", "")
    assert isinstance(text, str | list)
    return "".join(text) + "\n"


def prepare(folder: Path) -> None:
    """Write what zensical reads to ``folder``: the configuration, and the pages below docs/."""
    for path in sorted(DOCS.rglob("*")):
        if path.suffix not in COPIED or not path.is_file():
            continue
        target = folder / "docs" / path.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            target.write_text(page_of(path.read_text()))
        else:
            shutil.copyfile(path, target)
    api = folder / "docs" / "api.md"
    blocks = "\n".join(f"::: semigpc.{name}" for name in public_names())
    api.write_text(api.read_text().replace(NAMES_HERE, blocks))
    (folder / "docs" / "label_photos.md").write_text(notebook_page(NOTEBOOK))
    shutil.copyfile(ROOT / CONFIG, folder / CONFIG)
    (folder / "src").symlink_to(ROOT / "src")


def build(site: Path) -> str:
    """Build the site into a folder, which is replaced; return what is wrong, or nothing."""
    with tempfile.TemporaryDirectory(prefix="semigpc-site-") as name:
        work = Path(name)
        prepare(work)
        done = subprocess.run(
            [sys.executable, "-m", "zensical", "build", "--strict"],
            cwd=work,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            report = ANSI.sub("", done.stdout + done.stderr)
            return report.partition("Traceback")[0] if "issues found" in report else report
        for path in (work / "site").rglob("*.html"):
            path.write_text(ROLE.sub("", path.read_text()))
        shutil.rmtree(site, ignore_errors=True)
        shutil.copytree(work / "site", site)
    return ""


if __name__ == "__main__":
    problem = build(Path(sys.argv[1]))
    sys.exit(problem or None)
