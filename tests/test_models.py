"""The models have the parameters that the paper's tables count, see the images they should, and can be trained."""

import subprocess
import sys
from typing import NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedbcgd_lite import models
from fedbcgd_lite.blocks import Blocks, partition
from fedbcgd_lite.counts import layer_table
from fedbcgd_lite.flat import Flat
from fedbcgd_lite.models import LABELS, MODELS, VGG11, VGG19, ResNet18, ViTBase, ViTSmall
from fedbcgd_lite.rng import global_rng

timm = pytest.importorskip("timm")
SMALL = [name for name in MODELS if not name.startswith("vit_base")]  # those that take small images
every_small = pytest.mark.parametrize("name", SMALL)
VGG = (75648, 885248, 3539968, 4719616)
RESNET = (149824, 525568, 2099712, 3673088, 4720640)
VIT = (14918400, *[14175744] * 4, 14177280)


class Case(NamedTuple):
    """A model at the paper's width: its blocks, d, and the mean and the largest upload in units of d as printed."""

    model: str
    n_classes: int
    name: str
    sizes: tuple[int, ...]
    shared: int
    d: int
    mean_d: str
    max_d: str


COUNTS = [
    Case("lenet5", 10, "paper", (4864, 102464, 614784, 73920, 0), 1930, 797962, "0.201935", "0.7729"),
    Case("lenet5", 100, "paper", (4864, 102464, 614784, 73920, 0), 19300, 815332, "0.218937", "0.7777"),
    Case("lenet5", 10, "authors", (4864, 102464, 614784, 0, 0), 75850, 797962, "0.276044", "0.8655"),
    Case("lenet5", 100, "authors", (4864, 102464, 614784, 0, 0), 93220, 815332, "0.291467", "0.8684"),
    Case("lenet5", 10, "balanced5", (107328, *[204928] * 3, 73920), 1930, 797962, "0.201935", "0.2592"),
    Case("lenet5", 100, "balanced5", (107328, *[204928] * 3, 73920), 19300, 815332, "0.218937", "0.2750"),
    Case("resnet18", 10, "paper", RESNET, 5130, 11173962, "0.200367", "0.4229"),
    Case("resnet18", 100, "paper", RESNET, 51300, 11220132, "0.203658", "0.4253"),
    Case("vgg11", 100, "paper", (*VGG, 131328), 25700, 9377508, "0.202192", "0.5060"),
    Case("vgg11", 10, "paper", (*VGG, 51300), 1010, 9272790, "0.200087", "0.5091"),
    Case("vgg11_table8", 100, "paper", (*VGG, 3148800), 102500, 12471780, "0.206575", "0.3866"),
    Case("vgg19", 100, "paper", (2325568, 3539968, 4719616, 4719616, 5900032), 25700, 21230500, "0.200968", "0.2791"),
    Case("vit_base", 100, "paper", VIT, 76900, 85875556, "0.167413", "0.1746"),
    Case("vit_base", 200, "paper", VIT, 153800, 85952456, "0.168158", "0.1754"),
]


def full_size(name: str, n_classes: int) -> nn.Module:
    """A model at the paper's size, without values."""
    with torch.device("meta"):
        return MODELS[name]((3, 224, 224) if name == "vit_base" else (3, 32, 32), n_classes, 64)


def slim(name: str, image=(1, 28, 28)) -> nn.Module:
    with global_rng(0, "init"):
        return MODELS[name](image, 10, 4)


def flat(module: nn.Module, **kind) -> Flat:
    return Flat(module, Blocks((sum(p.numel() for p in module.parameters()),)), F.cross_entropy, **kind)


def batch(image=(1, 28, 28), size: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    with global_rng(0, "noise"):
        return torch.randn(size, *image), torch.randint(10, (size,))


# --- counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", COUNTS, ids=lambda case: f"{case.model}, {case.n_classes} classes, {case.name}")
def test_blocks_have_the_sizes_and_the_uploads_of_the_paper(case):
    """The paper's Tables 7-11 with biases and normalisation counted; the mean upload is not quite 1/N d."""
    blocks = partition(full_size(case.model, case.n_classes), case.name)
    assert (blocks.sizes, blocks.shared, blocks.d) == (case.sizes, case.shared, case.d)
    assert (f"{blocks.mean_upload_d:.6f}", f"{blocks.max_upload_d:.4f}") == (case.mean_d, case.max_d)


PRINTED = {  # what the paper's tables add up to, and what each of them leaves out or counts otherwise
    ("lenet5", 10): 797248,
    ("vgg11_table8", 100): 14038720 - 2 * 2359296 + 512 * 2048 + 2048 * 1024,  # its two FC rows are no linear layers
    ("resnet18", 10): 10992320 + 172032,  # the three 1 x 1 convolutions
    ("vgg19", 100): 21224128,
}


@pytest.mark.parametrize("model, n_classes", PRINTED)
def test_weights_alone_add_up_to_the_printed_totals(model, n_classes):
    """Kernels and matrices without biases and normalisation (the paper, Tables 7-10)."""
    weights = [p.numel() for p in full_size(model, n_classes).parameters() if p.ndim > 1]
    assert sum(weights) == PRINTED[model, n_classes]


def test_printed_size_of_a_vit_block_is_a_sixth_of_the_backbone():
    """Table 11 prints 14299520: all but the head and the last LayerNorm, divided by six, across layers."""
    parameters = dict(full_size("vit_base", 200).named_parameters())
    backbone = sum(p.numel() for name, p in parameters.items() if not name.startswith(("vit.head.", "vit.norm.")))
    assert backbone == 6 * 14299520 and parameters["vit.head.weight"].numel() == 153600


@pytest.mark.parametrize("width", [4, 16, 32])
def test_width_scales_every_layer(width):
    """Halving the width quarters what lies between two hidden layers."""
    for name in ("lenet5", "vgg11_table8", "vgg19", "resnet18", "vit_small"):
        (small, _), (large, _) = [
            zip(*[(p.shape, n) for n, p in MODELS[name]((3, 32, 32), 10, w).named_parameters()])
            for w in (width, 2 * width)
        ]
        ratios = {b / a for before, after in zip(small, large) for a, b in zip(before, after) if a != b}
        assert ratios == {2}, name


def test_every_model_has_a_label():
    assert set(LABELS) == set(MODELS) and len(set(LABELS.values())) == len(LABELS)


# --- images ---------------------------------------------------------------------------------------------------------


@every_small
@pytest.mark.parametrize("image", [(1, 28, 28), (3, 32, 32), (3, 32, 24)], ids=str)
def test_output_has_a_column_a_class(name, image):
    """Grey and colour, square and not."""
    assert slim(name, image)(batch(image)[0]).shape == (6, 10)


@pytest.mark.parametrize("model", [VGG11, VGG19])
def test_vgg_sees_the_same_map_at_28_and_at_32_pixels(model):
    """Pooling rounds up: the layers behind it have the same sizes for both."""
    grey, colour = [model((1, pixels, pixels), width=4).fc1.in_features for pixels in (28, 32)]
    assert grey == colour == (32 if model is VGG11 else 128)


REFUSED = {
    "VGG-11, 16 pixels": (lambda: VGG11((3, 16, 16)), "16 x 16|17 x 17"),
    "VGG-19, 8 pixels": (lambda: VGG19((3, 40, 8)), "40 x 8|9 x 9"),
    "ResNet-18, 4 pixels": (lambda: ResNet18((3, 4, 4)), "4 x 4|5 x 5"),
    "ResNet-18, odd width": (lambda: ResNet18(width=5), "width = 5|even"),
    "ViT, 30 pixels": (lambda: ViTSmall((1, 28, 30)), "28 x 30|patch of 4 x 4"),
    "ViT, no pixels": (lambda: ViTSmall((1, 0, 4)), "0 x 4|patch of 4 x 4"),
    "ViT-Base, 32 pixels": (lambda: ViTBase((3, 32, 32)), "32 x 32|224 x 224|vit_small"),
}


@pytest.mark.parametrize("make, words", REFUSED.values(), ids=REFUSED.keys())
def test_images_that_do_not_fit_are_refused_in_one_sentence(make, words):
    """The given size and the expected one."""
    with pytest.raises(ValueError) as error:
        make()
    message = str(error.value)
    assert all(word in message for word in words.split("|")) and message.endswith(".") and "\n" not in message


# --- training -------------------------------------------------------------------------------------------------------


@every_small
def test_gradient_reaches_every_parameter(name):
    """No layer is left out, and none is cut off by its initial values."""
    module, (x, y) = slim(name), batch(size=20)
    gradients = torch.autograd.grad(F.cross_entropy(module(x), y), [*module.parameters()])
    dead = [n for (n, _), g in zip(module.named_parameters(), gradients) if not g.abs().max() > 0]
    assert dead == []


@every_small
def test_nothing_but_parameters_is_kept(name):
    """Running statistics would belong to no block: GroupNorm and LayerNorm have none."""
    assert [*slim(name).buffers()] == []


@every_small
def test_gradients_of_two_clients_together_are_those_of_each(name):
    """Flat.gradient for x (2, d), warnings forbidden; equal up to rounding."""
    f, (x, y) = flat(slim(name).double()), batch()
    xs = torch.stack([f.x0, 0.9 * f.x0])
    together, losses = f.gradient(xs, torch.stack([x.double()] * 2), torch.stack([y] * 2))
    for client in (0, 1):
        alone, loss = f.gradient(xs[client], x.double(), y)
        torch.testing.assert_close(together[client], alone, rtol=1e-9, atol=1e-12)
        torch.testing.assert_close(losses[client], loss, rtol=1e-9, atol=1e-12)


@every_small
def test_gradient_in_bfloat16_is_near(name):
    """Products of numbers rounded to 8 bits: same direction, and not the same numbers."""
    module, (x, y) = slim(name), batch(size=20)
    exact, rounded = [flat(module, bf16=bf16).gradient(flat(module).x0, x, y)[0] for bf16 in (False, True)]
    assert rounded.dtype == torch.float32 and F.cosine_similarity(exact, rounded, dim=0) > 0.97
    assert not torch.equal(exact, rounded)


@pytest.mark.parametrize("model", [VGG11, VGG19])
def test_initial_vgg_tells_images_apart(model):
    """Outputs differ between images of noise by 0.01 and more; from PyTorch's initial values by less than 0.001."""
    with global_rng(0, "init"):
        module = model((1, 28, 28), 10, 8)
    x, _ = batch(size=20)
    with torch.no_grad():
        assert module(x).std(0).mean() > 0.01
        for layer in module.children():
            layer.reset_parameters()
        assert module(x).std(0).mean() < 1e-3


def test_attention_without_the_fused_kernel_is_attention():
    """The small transformer's plain products agree with PyTorch's kernel."""
    module, (x, _) = slim("vit_small").double(), batch()
    plain = module(x.double())
    for layer in module.vit.blocks:
        assert layer.attn.fused_attn is False
        layer.attn.fused_attn = True
    torch.testing.assert_close(module(x.double()), plain, rtol=1e-9, atol=1e-12)


# --- timm -----------------------------------------------------------------------------------------------------------


def test_pretrained_weights_that_cannot_be_had_are_an_error(monkeypatch):
    """Offline, nothing random takes their place without a word."""

    def offline(name, pretrained, **kind):
        assert pretrained
        raise OSError("we couldn't connect to the hub")

    monkeypatch.setattr(timm, "create_model", offline)
    with pytest.raises(ValueError, match=r"could not be had \(OSError\), and nothing random was put in their place"):
        MODELS["vit_base_pretrained"]((3, 224, 224), 10)


def test_pretrained_weights_are_asked_for_when_named(monkeypatch):
    """With the head of the task at hand, which is new."""
    asked = []
    monkeypatch.setattr(timm, "create_model", lambda name, **kind: asked.append((name, kind)) or nn.Identity())
    MODELS["vit_base_pretrained"]((3, 224, 224), 100), MODELS["vit_base"]((3, 224, 224), 100)
    assert [(name, kind["pretrained"], kind["num_classes"]) for name, kind in asked] == [
        ("vit_base_patch16_224", True, 100),
        ("vit_base_patch16_224", False, 100),
    ]


def test_missing_timm_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ValueError, match="timm is not installed"):
        models.ViTSmall()


def test_importing_the_package_imports_no_model_library():
    code = "import sys, fedbcgd_lite.models; sys.exit(bool({'timm', 'torchvision'} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True)


# --- the tables of the notebook -------------------------------------------------------------------------------------


def test_rows_of_a_table_add_up_to_the_blocks_of_its_model():
    """Layer by layer (the paper's Table 9), nothing is counted twice or forgotten."""
    table = layer_table("resnet18", 10)
    sums = table.assign(block=table["block"].where(table["block"] != "").ffill()).groupby("block", sort=False).sum()
    assert [*sums["parameters"]] == [*RESNET, 5130] and sums["printed"].sum() == 10992320


def test_a_model_without_a_table_is_refused():
    with pytest.raises(ValueError, match="no table of the paper is about 'vit_small': expected one of lenet5"):
        layer_table("vit_small", 10)
