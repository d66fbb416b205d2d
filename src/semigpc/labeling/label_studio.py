"""Tasks for Label Studio: the labels as predictions that people confirm or mend, and the given ones as annotations.

Take ``label_studio.xml`` as the labelling interface of a project, then import ``label_studio.json``. Images are referred to
by an address of one's own, or as local files: Label Studio serves these if it is started with the variables
LABEL_STUDIO_LOCAL_FILES_SERVING_ENABLED=true and LABEL_STUDIO_LOCAL_FILES_DOCUMENT_ROOT, the folder that holds that of the
images.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import quote
from xml.sax.saxutils import quoteattr

import pyarrow

LOCAL_FILES = "/data/local-files/?d="
CONTROL = "label"  # what the choices are called


class LabelStudio:
    """How rows become tasks.

    Args:
        images: the folder of the images; None for a table, whose rows are shown by their ids.
        image_url: what to put before the name of an image; None refers to local files.
        version: of the model, as shown beside predictions.
    """

    def __init__(self, images: Path | None, image_url: str | None, version: str) -> None:
        self.kind = "text" if images is None and image_url is None else "image"
        self.prefix = image_url if image_url is not None else f"{LOCAL_FILES}{quote(images.name)}/" if images else ""
        self.version = version

    def interface(self, classes: Sequence[str]) -> str:
        """The labelling interface that the tasks are made for."""
        shown = '<Image name="image" value="$image"/>' if self.kind == "image" else '<Text name="text" value="$text"/>'
        choices = "\n".join(f"    <Choice value={quoteattr(name)}/>" for name in classes)
        control = f'<Choices name="{CONTROL}" toName="{self.kind}" choice="single" showInline="true">'
        return f"<View>\n  {shown}\n  {control}\n{choices}\n  </Choices>\n</View>\n"

    def tasks(self, table: pyarrow.Table, id_name: str) -> Iterator[str]:
        """One task a row, as JSON: annotated if its label was given, else with a prediction scored by its confidence."""
        columns = (table.column(name).to_pylist() for name in (id_name, "label", "confidence", "status"))
        for name, label, confidence, status in zip(*columns, strict=True):
            shown = name if self.kind == "text" else self.prefix + quote(name)
            task: dict[str, object] = {"data": {self.kind: shown, "id": name, "status": status}}
            if label is not None:
                choice = {"from_name": CONTROL, "to_name": self.kind, "type": "choices", "value": {"choices": [label]}}
                if status == "labelled":
                    task["annotations"] = [{"result": [choice]}]
                else:
                    score = round(confidence, 6)
                    task["predictions"] = [{"model_version": self.version, "score": score, "result": [choice]}]
            yield json.dumps(task, ensure_ascii=False)
