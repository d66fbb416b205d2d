"""The import file for Label Studio."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pyarrow

from semigpc.labeling.outputs import LabelStudio

TABLE = pyarrow.table(
    {
        "file_name": ["a b/1.jpg", '<i>"ä".jpg', "c.jpg", "d.jpg"],
        "label": ["cat", "dog & <co>", None, None],
        "guess": ["cat", "dog & <co>", "cat", None],
        "confidence": [1.0, 0.75, 0.25, 0.0],
        "variance": [0.0, 0.5, 0.9, 1.0],
        "status": ["labelled", "pseudo", "outlier", "abstained"],
    }
)


def tasks(studio: LabelStudio) -> list[dict[str, object]]:
    return [json.loads(task) for task in studio.tasks(TABLE, "file_name")]


def test_images_with_predictions_and_given_labels_as_annotations() -> None:
    first, second, third, fourth = tasks(LabelStudio(Path("/data/my photos"), None, "semigpc-1"))
    choice = {"from_name": "label", "to_name": "image", "type": "choices"}
    address = "/data/local-files/?d=my%20photos/a%20b/1.jpg"
    assert first == {
        "data": {"image": address, "id": "a b/1.jpg", "status": "labelled"},
        "annotations": [{"result": [choice | {"value": {"choices": ["cat"]}}]}],
    }
    result = [choice | {"value": {"choices": ["dog & <co>"]}}]
    address = "/data/local-files/?d=my%20photos/%3Ci%3E%22%C3%A4%22.jpg"
    assert second == {
        "data": {"image": address, "id": '<i>"ä".jpg', "status": "pseudo"},
        "predictions": [{"model_version": "semigpc-1", "score": 0.75, "result": result}],
    }
    assert "predictions" in third
    assert set(fourth) == {"data"}


def test_an_address_of_ones_own_and_rows_of_a_table() -> None:
    image = tasks(LabelStudio(None, "https://host/", "v"))[2]
    expected = {"image": "https://host/c.jpg", "id": "c.jpg", "status": "outlier"}
    assert image["data"] == expected
    text = tasks(LabelStudio(None, None, "v"))[0]
    assert text["data"] == {"text": "a b/1.jpg", "id": "a b/1.jpg", "status": "labelled"}


def test_the_interface_offers_every_class_under_the_names_that_tasks_use() -> None:
    for studio, kind in (
        (LabelStudio(Path("photos"), None, "v"), "Image"),
        (LabelStudio(None, None, "v"), "Text"),
    ):
        view = ElementTree.fromstring(studio.interface(["cat", 'dog & <"co">']))
        assert [choice.get("value") for choice in view.iter("Choice")] == ["cat", 'dog & <"co">']
        choices, shown = view.find("Choices"), view.find(kind)
        assert choices is not None
        assert shown is not None
        assert (choices.get("name"), choices.get("toName")) == ("label", shown.get("name"))
        assert shown.get("value") == f"${shown.get('name')}"
