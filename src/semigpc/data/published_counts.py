"""Published facts of the four fine-grained sets: counts and hashes of their split files, the paper's figures, archives."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Name = Literal["semi_aves", "semi_fungi", "semi_inat", "cub"]

SPLIT_FILES_AT = "https://github.com/cvl-umass/ssl-evaluation"


@dataclass(frozen=True)
class PublishedFile:
    """One split file as published, counted and hashed; None where it could not be examined.

    Args:
        images: its lines.
        classes: the number of classes in its label column, and the fewest and the most images of one; None if it has none.
        sha256: the first 16 digits.
        paper_images: its length by the paper.
        paper_each: the number of images of each class by the paper.
    """

    images: int | None
    classes: tuple[int, int, int] | None
    sha256: str | None
    paper_images: int | None = None
    paper_each: int | None = None


@dataclass(frozen=True)
class Imbalance:
    """Most over fewest images of a class, counted over ``files`` together, beside what the paper prints."""

    files: tuple[str, ...]
    most: int
    fewest: int
    paper: str


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """A fine-grained set.

    Args:
        title: its name in the paper.
        classes: C. classes_out: how many more the images of ``u_train_out`` belong to.
        image_folder: inside the set's folder, what the paths of the split files are relative to; "" for the folder itself.
        named_folders: whether the folder of an image has the name of its class.
        files: by split, in the order of reports.
        imbalance: the paper's gamma.
        remark: why the paper's figure is wrong, where the files contradict it.
        source: where the images are published.
        archives: by the first folder of a path, which archive has it; "" for any other.
        layout: where to put the archives, to follow the word "unpack".
    """

    title: str
    classes: int
    classes_out: int
    image_folder: str = ""
    named_folders: bool = False
    files: dict[str, PublishedFile]
    imbalance: Imbalance
    remark: str = ""
    source: str
    archives: dict[str, str]
    layout: str

    def labels_of(self, split: str) -> tuple[int, int | None]:
        """Return the smallest label allowed in a split file, and what all must be less than."""
        if split == "u_train_out_oracle":
            return self.classes, self.classes + self.classes_out
        if split in ("u_train_out", "u_train"):
            return -1, None
        return (-1 if split == "u_train_in" else 0), self.classes

    def archive_of(self, name: str) -> str:
        """Return the archive that has an image."""
        return self.archives.get(name.partition("/")[0]) or self.archives.get("", "its archive")

    def instructions(self, name: str, root: Path) -> str:
        """Return how to get the set, in a paragraph."""
        wanted = list(dict.fromkeys(self.archives.values()))
        return (
            f"{self.title} has to be fetched by hand, under its owners' terms. From {self.source} take {', '.join(wanted)} and "
            f"unpack {self.layout.format(folder=root / name)}. Put the split files, {SPLIT_FILES_AT}, folder data/{name}, into "
            f"{root / name} too. Then run: semigpc data verify {name} {root} --images exist"
        )


BENCHMARKS: dict[str, Benchmark] = {
    "semi_aves": Benchmark(
        title="SemiAves",
        classes=200,
        classes_out=800,
        files={
            "l_train": PublishedFile(3959, (200, 5, 43), "219bde6e8accc72d"),
            "val": PublishedFile(2000, (200, 10, 10), "557a6a40bf52e0e3"),
            "l_train_val": PublishedFile(5959, (200, 15, 53), "c06c637db93d292d", 5959),
            "u_train_in": PublishedFile(26640, None, "d5ccd3a6c564d41f", 26640),
            "u_train_in_oracle": PublishedFile(26640, (200, 16, 229), "3187fceac7d2e4a1"),
            "u_train_out": PublishedFile(122208, None, "a07ecb36675e1008", 122208),
            "u_train_out_oracle": PublishedFile(122208, (800, 23, 250), "975b614a5d61c02e"),
            "u_train": PublishedFile(148848, None, "128d50db61f4aa65"),
            "test": PublishedFile(8000, (200, 40, 40), "189d591649180f88", None, 40),
        },
        imbalance=Imbalance(("l_train_val", "u_train_in_oracle"), 260, 33, "7.9"),
        source="https://github.com/cvl-umass/semi-inat-2020 (Google Drive or Kaggle; version 2, of 25 March 2020)",
        archives={
            "trainval_images": "the labelled training and validation images (533 MB)",
            "u_train_in": "the in-class unlabelled images (2.3 GB)",
            "u_train_out": "the out-of-class unlabelled images (11 GB, for U_out only)",
            "test": "the test images (722 MB)",
        },
        layout="them in {folder}, which then has the folders trainval_images, u_train_in, u_train_out and test",
    ),
    "semi_fungi": Benchmark(
        title="SemiFungi",
        classes=200,
        classes_out=1194,
        named_folders=True,
        files={
            "l_train": PublishedFile(4141, (200, 6, 78), "3eccc6c58e137469"),
            "l_train_val": PublishedFile(4141, (200, 6, 78), "3eccc6c58e137469", 4141),
            "u_train_in": PublishedFile(13166, None, "701ffb0e71c9dc9d", 13166),
            "u_train_in_oracle": PublishedFile(13166, (200, 16, 276), "93360ad0db8090cf"),
            "u_train_out": PublishedFile(64871, None, "08953d2558f11de2", 64871),
            "u_train_out_oracle": PublishedFile(64871, (1194, 3, 439), "12f6e48abd732ced"),
            "u_train": PublishedFile(None, None, None),
            "test": PublishedFile(4000, (200, 20, 20), "000905b222fe66fa", None, 20),
        },
        imbalance=Imbalance(("l_train_val", "u_train_in_oracle"), 354, 35, "10.1"),
        source="https://github.com/visipedia/fgvcx_fungi_comp",
        archives={"": "fungi_train_val.tgz (13 GB, md5 df2b2980835668ed1d9a0e286e4bdadd)"},
        layout="it in {folder}, which then has the folder images; the split's authors shrank its images to 300 px at most",
    ),
    "semi_inat": Benchmark(
        title="Semi-iNat",
        classes=810,
        classes_out=1629,
        files={
            "l_train": PublishedFile(9721, (810, 5, 80), "8afd3f4154feee5f"),
            "val": PublishedFile(4050, (810, 5, 5), "c77b2a9909e7773f"),
            "l_train_val": PublishedFile(13771, (810, 10, 85), "c75ca656e5f08f07", 13771),
            "u_train_in": PublishedFile(None, None, None, 91336),
            "u_train_out": PublishedFile(None, None, None, 221912),
            "u_train": PublishedFile(313248, None, None),  # according to its owners
            "test": PublishedFile(16200, (810, 20, 20), "f161c7dc06a88d64", None, 100),
        },
        imbalance=Imbalance(("l_train_val",), 85, 10, "8.5"),
        remark="The paper speaks of 100 test images of each class of Semi-iNat; the published file has 20, the public and "
        "the private half of 8100 images merged.",
        source="https://github.com/cvl-umass/semi-inat-2021",
        archives={
            "l_train": "l_train.tar.gz (164 MB)",
            "val": "val.tar.gz (67 MB)",
            "test": "test.tar.gz (271 MB)",
            "": "u_train.tar.gz (5.2 GB)",
        },
        layout="them in {folder}, which then has the folders l_train, val, test and u_train",
    ),
    "cub": Benchmark(
        title="SemiCUB",
        classes=100,
        classes_out=100,
        image_folder="images",
        named_folders=True,
        files={
            "l_train": PublishedFile(500, (100, 5, 5), "ca16bd836507fc02"),
            "val": PublishedFile(500, (100, 5, 5), "d68c9ed8d55b655d"),
            "l_train_val": PublishedFile(1000, (100, 10, 10), "8fc162d820fd88f1", 1000),
            "u_train_in": PublishedFile(3885, (100, 24, 40), "7452eb62622232ea", 3853),
            "u_train_out": PublishedFile(5903, None, "7a30b35cb584f846", 5903),
            "u_train": PublishedFile(9788, (100, 24, 40), "97eca774ad49389f"),
            "test": PublishedFile(1000, (100, 10, 10), "c3a331d763d8bbbb", 1000),
        },
        imbalance=Imbalance(("u_train_in",), 40, 24, "about 2"),
        remark="The paper gives SemiCUB 3853 images in U_in; the published file lists 3885, and only so do 1000 + 3885 + "
        "1000 + 5903 make the 11788 images of CUB-200-2011.",
        source="https://data.caltech.edu/records/65de6-vp158",
        archives={"": "CUB_200_2011.tgz (md5 97eceeb196236b17998738112f37df78)"},
        layout="it anywhere, and move its CUB_200_2011/images to {folder}/images",
    ),
}
