"""The README keeps its word."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_python_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(example, "README.md", "exec"), names)
    probabilities = names["probabilities"]
    assert probabilities.shape == (8, 5)  # type: ignore[attr-defined]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    "page",
    ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))],
)
def test_links_to_files_lead_somewhere(page: str) -> None:
    text = (ROOT / page).read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), f"{page} links to {target}"


def test_the_commands_are_targets_of_the_makefile() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(
        re.findall(r"(?:`|\n)make ([a-z-]+)", README + (ROOT / "CONTRIBUTING.md").read_text())
    )
    assert {"run", "test", "test-cpus"} <= named <= targets
