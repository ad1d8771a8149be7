"""Data sets: the drawn glyphs, and readers of the published files, tried on small stand-ins in the same formats."""

import pickle
import re
import shutil
import sys
from hashlib import md5
from importlib.metadata import version
from pathlib import Path
from urllib.error import URLError

import matplotlib
import numpy as np
import PIL
import pytest
import torch
from PIL import Image
from torchvision import datasets

import fedbcgd_lite as fb
from fedbcgd_lite import data
from fedbcgd_lite.datasets import draw_glyphs100, tinyimagenet

CONSTRAINTS = (Path(__file__).parent.parent / "constraints.txt").read_text().splitlines()
ARCHIVES = {
    "cifar10": (datasets.CIFAR10.url, "cifar-10-batches-py", "data_batch_1, .*test_batch, batches.meta"),
    "cifar100": (datasets.CIFAR100.url, "cifar-100-python", "train, test, meta"),
    "emnist-balanced": (datasets.EMNIST.url, "EMNIST/raw", "emnist-balanced-train-images-idx3-ubyte"),
    "emnist-byclass": (datasets.EMNIST.url, "EMNIST/raw", "emnist-byclass-test-labels-idx1-ubyte"),
    "tinyimagenet": (tinyimagenet.URL, "tiny-imagenet-200", "wnids.txt, .*val_annotations.txt"),
}


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    """An empty FEDBCGD_DATA on a machine without a network."""

    def offline(*_, **__):
        raise URLError("no route to host")

    monkeypatch.setenv("FEDBCGD_DATA", str(tmp_path))
    monkeypatch.setattr("urllib.request.urlopen", offline)
    data.load.cache_clear()
    yield tmp_path
    data.load.cache_clear()


def refused(name, *words):
    """The one sentence with which a data set is refused; it names each of the words."""
    with pytest.raises(ValueError) as error:
        data.load(name)
    message = str(error.value)
    assert [word for word in words if not re.search(word, message)] == [] and message.endswith(".")
    return message


# --- names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["imagefolder", "imagefolder:", "fmnist12k:here", "fmnist12k:", "cifar", "", None])
def test_a_wrong_name_is_refused_with_all_right_ones(name):
    with pytest.raises(ValueError, match="unknown dataset") as error:
        fb.task("smoke", dataset=name)
    assert all(repr(known) in str(error.value) for known in data.LABELS)
    assert "'imagefolder:<folder>'" in str(error.value)


def test_each_data_set_has_a_reader_a_label_and_an_augmentation():
    """Only pictures of things are mirrored; larger pictures are shifted further."""
    assert {*data.DATASETS} == {*data.LABELS, "imagefolder"}
    assert data.label("cifar100") == "CIFAR-100" and data.label("imagefolder:here/pets") == "pets"
    mirrored = {name for name in data.LABELS if data.augmentation(name).flip}
    assert mirrored == {"cifar10", "cifar100", "tinyimagenet"} and data.augmentation("imagefolder:pets").flip
    assert [data.augmentation(name).pad for name in ("glyphs100", "cifar10", "tinyimagenet")] == [2, 4, 8]


# --- Glyphs-100 -----------------------------------------------------------------------------------------------------


def test_glyphs_are_balanced_bytes_of_100_classes():
    """100 training and 20 test images of each of 100 characters, in no order of classes, none of them twice."""
    glyphs = data.load("glyphs100")
    assert glyphs.x_train.shape == (10_000, 1, 28, 28) and glyphs.x_test.shape == (2_000, 1, 28, 28)
    assert glyphs.x_train.dtype == torch.uint8 and glyphs.n_classes == 100 == len(set(draw_glyphs100.CHARACTERS))
    assert torch.bincount(glyphs.y_train).tolist() == [100] * 100
    assert torch.bincount(glyphs.y_test).tolist() == [20] * 100
    assert len(glyphs.y_train[:100].unique()) > 50
    assert len({image.numpy().tobytes() for image in [*glyphs.x_train, *glyphs.x_test]}) == 12_000


def test_redrawing_the_glyphs_gives_the_committed_file():
    """Byte for byte with the library versions of constraints.txt; with others, nearly so."""
    drawn = draw_glyphs100.draw()
    pinned = {f"matplotlib=={matplotlib.__version__}", f"pillow=={PIL.__version__}", f"numpy=={version('numpy')}"}
    with np.load(draw_glyphs100.TARGET) as committed:
        assert set(committed.files) == set(drawn)
        for name, values in drawn.items():
            off = np.abs(committed[name].astype(int) - values).mean()
            assert values.dtype == np.uint8 and off <= (0 if pinned <= {*CONSTRAINTS} or name[0] == "y" else 2)


def test_a_character_is_drawn_from_every_face_that_has_it():
    """16 faces for letters; a face without a character, as the slanted STIX without infinity, is left out."""
    assert len(draw_glyphs100.FACES) == 16
    assert {len(draw_glyphs100.faces_with(character)) for character in draw_glyphs100.CHARACTERS} == {16}
    missing = {*draw_glyphs100.FACES} - {*draw_glyphs100.faces_with("\N{INFINITY}")}
    assert missing == {"STIXGeneralItalic", "STIXGeneralBolIta"}


def test_the_licences_of_the_fonts_lie_beside_the_glyphs():
    text = (data.FOLDER / "LICENSE-glyphs100.txt").read_text()
    assert all(word in text for word in ("DejaVu", "Bitstream Vera", "Arev", "STIX", "SIL Open Font License"))


# --- machines without a network ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ARCHIVES)
def test_offline_and_absent_names_the_folder_the_files_and_their_source(name, root, capsys):
    """One line tells of the download before it is tried; nothing else takes the place of the data, also next time."""
    url, folder, wanted = ARCHIVES[name]
    for _ in range(2):
        refused(name, re.escape(str(root / folder)), "not there and could not be downloaded", "no route", wanted, url)
        assert re.fullmatch(rf".* is not in {root / folder}: downloading it from {url}\.\n", capsys.readouterr().err)


@pytest.mark.parametrize("name", ["cifar10", "imagefolder:pets"])
def test_without_torchvision_the_reader_asks_for_it(name, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision", None)
    refused(name, "pip install torchvision")


# --- CIFAR ----------------------------------------------------------------------------------------------------------


class OldType:
    """NumPy's type of bytes as NumPy 1 pickled it, with numbers for flags: so it is in the published files."""

    def __reduce__(self):
        return np.dtype, ("u1", 0, 1), (3, "|", None, None, None, -1, -1, 0)


class OldArray:
    """An array of bytes as Python 2 and NumPy 1 pickled it."""

    def __init__(self, array):
        self.array = array

    def __reduce__(self):
        rebuild, blank, _ = self.array.__reduce__()
        return rebuild, blank, (1, self.array.shape, OldType(), False, self.array.tobytes())


def cifar(root, monkeypatch, name):
    """Two images a batch, of channels about as bright as their number times 50, and no image of the last class."""
    kind = getattr(datasets, name.upper())
    folder, rng = root / kind.base_folder, np.random.default_rng(0)
    folder.mkdir()

    def write(file, content):
        (folder / file).write_bytes(pickle.dumps(content, protocol=2))
        return file, md5((folder / file).read_bytes()).hexdigest()

    def batch(start):
        pixels = np.repeat([50, 100, 150], 1024) + rng.integers(0, 50, (2, 3072))
        labels = "labels" if name == "cifar10" else "fine_labels"
        return {"data": OldArray(pixels.astype(np.uint8)), labels: [start, start + 1], "coarse_labels": [0, 0]}

    for files in ("train_list", "test_list"):
        monkeypatch.setattr(kind, files, [write(file, batch(i)) for i, (file, _) in enumerate(getattr(kind, files))])
    names = [str(i) for i in range(int(name.removeprefix("cifar")))]
    file, digest = write(kind.meta["filename"], {kind.meta["key"]: names})
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": digest})
    return folder


@pytest.mark.parametrize("name, n_train, n_classes", [("cifar10", 10, 10), ("cifar100", 2, 100)])
def test_cifar_is_read(name, n_train, n_classes, root, monkeypatch, capsys):
    """Channels before rows, all batches in order, as many classes as there are names, and no word of a download."""
    folder = cifar(root, monkeypatch, name)
    loaded = data.load(name)
    assert loaded.x_train.shape == (n_train, 3, 32, 32) and loaded.x_test.shape == (2, 3, 32, 32)
    assert loaded.x_train.dtype == torch.uint8 and loaded.n_classes == n_classes
    assert loaded.y_train.tolist() == [label for i in range(n_train // 2) for label in (i, i + 1)]
    assert loaded.y_test.tolist() == [0, 1]
    assert [int(loaded.x_train[:, channel].min()) // 50 for channel in range(3)] == [1, 2, 3]
    file = pickle.loads((folder / ("data_batch_1" if name == "cifar10" else "train")).read_bytes())["data"]
    assert np.array_equal(loaded.x_train[:2].flatten(1), file)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_normalised_by_its_own_pixels(name, root, monkeypatch):
    """Mean 0 and standard deviation 1 in each channel of the training set, which the embedded set's would not give."""
    cifar(root, monkeypatch, name)
    loaded = data.load(name)
    pixels = loaded.normalise(loaded.x_train).double()
    assert pixels.mean((0, 2, 3)).abs().max() < 1e-5
    assert (pixels.std((0, 2, 3), correction=0) - 1).abs().max() < 1e-5


@pytest.mark.parametrize("harm", ["data_batch_3 cut", "data_batch_3 gone", "batches.meta changed"])
def test_a_damaged_cifar_file_is_refused(harm, root, monkeypatch):
    """The checksums of torchvision tell; nothing is downloaded over files that are there."""
    folder = cifar(root, monkeypatch, "cifar10")
    file, what = harm.split()
    content = (folder / file).read_bytes()
    (folder / file).unlink()
    if what != "gone":
        (folder / file).write_bytes(content[:100] if what == "cut" else content + b" ")
    refused("cifar10", re.escape(str(folder)), "incomplete or damaged", file, datasets.CIFAR10.url)


# --- EMNIST ---------------------------------------------------------------------------------------------------------


def idx(path, array):
    """An idx file: magic with type and number of axes, big-endian sizes, bytes."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">i4").tobytes()
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def emnist(root, split, labels=(0, 3)):
    """Images whose upright form is a bar along the top row, in files that hold it along the first column."""
    folder = root / "EMNIST" / "raw"
    folder.mkdir(parents=True)
    upright = np.zeros((len(labels), 28, 28))
    upright[:, 0, 4:] = 200
    for part in ("train", "test"):
        idx(folder / f"emnist-{split}-{part}-images-idx3-ubyte", upright.swapaxes(1, 2))
        idx(folder / f"emnist-{split}-{part}-labels-idx1-ubyte", np.array(labels))
    return folder


@pytest.mark.parametrize("split, n_classes", [("balanced", 47), ("byclass", 62)])
def test_emnist_is_read_upright(split, n_classes, root):
    """The files hold images transposed; the reader turns them, and knows of classes that no image has."""
    emnist(root, split)
    loaded = data.load(f"emnist-{split}")
    assert loaded.x_train.shape == loaded.x_test.shape == (2, 1, 28, 28) and loaded.x_train.dtype == torch.uint8
    assert loaded.y_train.tolist() == [0, 3] and loaded.y_train.dtype == torch.int64 and loaded.n_classes == n_classes
    assert loaded.x_train[0, 0].nonzero()[:, 0].unique().tolist() == [0]
    assert loaded.x_test[0, 0, 0].nonzero().flatten().tolist() == list(range(4, 28))


@pytest.mark.parametrize("length", [0, 10, 500])
def test_a_cut_emnist_file_is_refused(length, root):
    folder = emnist(root, "balanced")
    path = folder / "emnist-balanced-train-images-idx3-ubyte"
    path.write_bytes(path.read_bytes()[:length])
    refused("emnist-balanced", re.escape(str(folder)), "incomplete or damaged", path.name, datasets.EMNIST.url)


def test_labels_that_are_none_of_the_classes_are_refused(root):
    emnist(root, "balanced", labels=(0, 47))
    refused("emnist-balanced", "labels from 0 to 47", "expected a label from 0 to 46")


def test_more_labels_than_images_are_refused(root):
    idx(emnist(root, "balanced") / "emnist-balanced-test-labels-idx1-ubyte", np.array([0, 1, 2]))
    refused("emnist-balanced", "2 test images and 3 labels", "for each image")


# --- Tiny ImageNet --------------------------------------------------------------------------------------------------

WNIDS = ["n03", "n01", "n02"]  # not sorted


def jpeg(path, value, size=(64, 64), grey=False):
    """A picture of one colour."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((*reversed(size), *(() if grey else (3,))), value, np.uint8)).save(path, "JPEG")


@pytest.fixture
def tiny(root):
    """Three classes in the published layout, two training images each, one of them grey, and three for validation."""
    folder = root / "tiny-imagenet-200"
    for label, wnid in enumerate(WNIDS):
        for i in range(2):
            jpeg(folder / "train" / wnid / "images" / f"{wnid}_{i}.JPEG", 80 * label, grey=i == 1)
        (folder / "train" / wnid / f"{wnid}_boxes.txt").write_text(f"{wnid}_0.JPEG\t0\t0\t62\t62\n")
        jpeg(folder / "val" / "images" / f"val_{label}.JPEG", 80 * label)
    lines = [f"val_{i}.JPEG\t{WNIDS[i]}\t0\t0\t62\t62\n" for i in (2, 0, 1)]
    (folder / "val" / "val_annotations.txt").write_text("".join(lines))
    (folder / "wnids.txt").write_text("\n".join(WNIDS) + "\n")
    return folder


def test_tiny_imagenet_is_read(tiny):
    """Labels in the order of wnids.txt, the validation images as test set, grey images in three equal channels."""
    loaded = data.load("tinyimagenet")
    assert loaded.x_train.shape == (6, 3, 64, 64) and loaded.x_test.shape == (3, 3, 64, 64)
    assert loaded.x_train.dtype == torch.uint8 and loaded.n_classes == 3
    assert loaded.y_train.tolist() == [0, 0, 1, 1, 2, 2] and loaded.y_test.tolist() == [2, 0, 1]
    for images, labels in ((loaded.x_train, loaded.y_train), (loaded.x_test, loaded.y_test)):
        assert torch.equal(images, (80 * labels).to(torch.uint8)[:, None, None, None].expand_as(images))


@pytest.mark.parametrize("missing", ["wnids.txt", "train", "train/n01", "val", "val/val_annotations.txt"])
def test_an_incomplete_tiny_imagenet_is_refused(missing, tiny):
    path = tiny / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    refused("tinyimagenet", re.escape(str(tiny)), "incomplete or damaged", missing.split("/")[-1], tinyimagenet.URL)


def test_an_annotation_of_an_image_that_is_not_there_is_named(tiny):
    (tiny / "val" / "images" / "val_1.JPEG").unlink()
    refused("tinyimagenet", r"val_1\.JPEG is only in one of val/images and val/val_annotations\.txt")


def test_a_validation_image_without_annotation_is_named(tiny):
    jpeg(tiny / "val" / "images" / "val_9.JPEG", 0)
    refused("tinyimagenet", r"val_9\.JPEG is only in one of val/images and val/val_annotations\.txt")


def test_an_annotation_of_an_unknown_class_is_named(tiny):
    (tiny / "val" / "val_annotations.txt").write_text("val_0.JPEG\tn99\t0\t0\t62\t62\n")
    refused("tinyimagenet", "n99", "wnids.txt")


def test_an_image_of_another_size_is_named(tiny):
    jpeg(tiny / "train" / "n01" / "images" / "n01_1.JPEG", 0, size=(60, 50))
    refused("tinyimagenet", r"n01_1\.JPEG has 60 x 50 pixels: expected 64 x 64 as Tiny ImageNet")


def test_a_damaged_image_is_named(tiny):
    path = tiny / "val" / "images" / "val_0.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    refused("tinyimagenet", r"val_0\.JPEG is no image that can be read")


# --- image folders --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    """FEDBCGD_DATA/pets: two classes, three training images and one test image each, 6 x 5 pixels, one grey."""
    for part, number in (("train", 3), ("test", 1)):
        for label, name in enumerate(("cat", "dog")):
            (tmp_path / "pets" / part / name).mkdir(parents=True)
            for i in range(number):
                pixels = np.full((5, 6, 3), 100 * label + i, np.uint8)
                image = Image.fromarray(pixels[..., 0] if i == 2 else pixels)
                image.save(tmp_path / "pets" / part / name / f"{i}.png")
    return tmp_path / "pets"


def test_an_image_folder_is_read(folder):
    """Classes in sorted order, bytes as they are, grey images in three equal channels."""
    loaded = data.load("imagefolder:pets")
    assert loaded.x_train.shape == (6, 3, 5, 6) and loaded.x_test.shape == (2, 3, 5, 6)
    assert loaded.x_train.dtype == torch.uint8 and loaded.n_classes == 2
    assert loaded.y_train.tolist() == [0, 0, 0, 1, 1, 1] and loaded.y_test.tolist() == [0, 1]
    assert loaded.x_train[:, 1, 4, 5].tolist() == [0, 1, 2, 100, 101, 102]


def test_a_task_trains_on_an_image_folder(folder):
    """Its name in tables is the folder's own; an absolute folder is found as well."""
    for name in ("imagefolder:pets", f"imagefolder:{folder}"):
        task = fb.task("smoke", dataset=name, model="logistic", n_clients=2, clients_per_round=2, rounds=1)
        run = fb.simulate(task.problem(0), fb.FedAvg(), task, budget_d=None)
        assert run.round == 1 and data.label(name) == "pets"


@pytest.mark.parametrize("missing", ["", "train", "test", "test/dog"])
def test_a_folder_that_is_not_there_is_named(folder, missing):
    """The sentence says where it was looked for and what belongs there."""
    shutil.rmtree(folder / missing)
    with pytest.raises(ValueError, match=f"{re.escape(str(folder))}.*(expected|same folders)"):
        data.load("imagefolder:pets")


def test_a_class_without_images_is_named(folder):
    for path in (folder / "train" / "dog").iterdir():
        path.unlink()
    with pytest.raises(ValueError, match="dog"):
        data.load("imagefolder:pets")


def test_a_broken_image_is_named(folder):
    (folder / "train" / "cat" / "1.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"cat/1\.png is no image that can be read"):
        data.load("imagefolder:pets")


def test_images_of_two_sizes_are_named(folder):
    Image.fromarray(np.zeros((4, 7, 3), np.uint8)).save(folder / "test" / "dog" / "0.png")
    with pytest.raises(ValueError, match=r"test/dog/0\.png has 7 x 4 pixels: expected 6 x 5 as .*cat/0\.png"):
        data.load("imagefolder:pets")
