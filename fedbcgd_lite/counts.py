"""Parameters of the paper's models: layer by layer beside its Tables 7-11, and block by block.

Models are built without values (torch's meta device), so that counting 86 million parameters takes no memory.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import seaborn as sns
import torch
from matplotlib.figure import Figure

from .blocks import Blocks, partition
from .figures import STYLE
from .models import LABELS, MODELS
from .paper_blocks import PAPER
from .tables import PAPER as FOLDER

TABLES = {"lenet5": 7, "vgg11_table8": 8, "resnet18": 9, "vgg19": 10, "vit_base": 11}
LEGEND = {"fontsize": 8.5, "loc": "lower center", "bbox_to_anchor": (0.5, 1), "handlelength": 1, "columnspacing": 1}
NOT_PRINTED = "shortcut", "blocks.10"  # layers that no row of the tables is about: three of ResNet-18, block 6 of ViT


def full_size(model: str, n_classes: int) -> torch.nn.Module:
    """A model of the paper at the paper's width, without values: 32 x 32 colour images, 224 x 224 for ViT-Base."""
    image = (3, 224, 224) if model.startswith("vit_base") else (3, 32, 32)
    with torch.device("meta"):
        return MODELS[model](image, n_classes, 64)


def layer_table(model: str, n_classes: int) -> pd.DataFrame:
    """The rows of one of the Tables 7-11 beside the layers here, one row a layer.

    Columns: block and label (as printed), layer (here), printed, weights (matrices and kernels), parameters (biases and
    normalisation as well), difference = weights - printed. Where nothing is printed, the first two are empty.
    """
    if model not in TABLES:
        raise ValueError(f"no table of the paper is about {model!r}: expected one of {', '.join(TABLES)}.")
    module = full_size(model, n_classes)
    ours = pd.DataFrame(_runs(module) if model == "vit_base" else _layers(module))
    printed_here = ~ours["layer"].str.contains("|".join(map(r"\b{}\b".format, NOT_PRINTED)))
    ours["row"] = printed_here.cumsum().where(printed_here, 0)
    printed = pd.read_csv(FOLDER / "blocks.csv").query(f"table == {TABLES[model]}")
    printed = printed.rename(columns={"layer_label": "label", "n_params_printed": "printed"})
    both = ours.merge(printed, how="left", on="row").astype({"printed": "Int64"})
    both["difference"] = both["weights"] - both["printed"]
    columns = ["block", "label", "layer", "printed", "weights", "parameters", "difference"]
    return both[columns].fillna({"block": "", "label": ""})


def _layers(module: torch.nn.Module) -> list[dict]:
    """One row a layer with weights, in order; normalisation belongs to the layer before it."""
    rows = []
    for name, p in module.named_parameters():
        if p.ndim > 1:
            rows.append({"layer": name.rpartition(".")[0], "weights": p.numel(), "parameters": 0})
        rows[-1]["parameters"] += p.numel()
    return rows


def _runs(module: torch.nn.Module) -> list[dict]:
    """One row a block of the paper's partition."""
    groups, shared = PAPER[type(module).__name__, "paper"]
    rows = []
    for group in (*groups, shared):
        held = [p for name, p in module.named_parameters() if any(f"{name}.".startswith(f"{e}.") for e in group)]
        weights = sum(p.numel() for p in held if p.ndim > 1)
        layer = " ".join(entry.removeprefix("vit.") for entry in group)
        rows.append({"layer": layer, "weights": weights, "parameters": sum(p.numel() for p in held)})
    return rows


def block_frame(choices: list[tuple[str, int, str]]) -> pd.DataFrame:
    """The blocks of each (model, number of classes, partition), one row a block.

    Columns: model, classes, partition, block (1, ..., N, or "shared"), floats, size_d (in units of d).
    """
    rows = []
    for model, n_classes, name in choices:
        blocks = partition(full_size(model, n_classes), name)
        identity = {"model": LABELS[model], "classes": n_classes, "partition": name}
        numbers = [*range(1, blocks.n_blocks + 1), "shared"]
        for block, floats in zip(numbers, (*blocks.sizes, blocks.shared)):
            rows.append({**identity, "block": str(block), "floats": floats, "size_d": floats / blocks.d})
    return pd.DataFrame(rows)


def upload_table(frame: pd.DataFrame) -> pd.DataFrame:
    """What one client uploads in a round with the blocks of `block_frame`: d in floats, the others in units of d.

    Columns: d, shared, nominal (the paper's 1/N), mean and largest.
    """
    rows = {}
    for key, group in frame.groupby(["model", "classes", "partition"], sort=False):
        *sizes, shared = group["floats"]
        b = Blocks(tuple(sizes), shared)
        values = b.d, b.shared / b.d, 1 / b.n_blocks, b.mean_upload_d, b.max_upload_d
        rows[key] = dict(zip(("d", "shared", "nominal", "mean", "largest"), values))
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(["model", "classes", "partition"])


def block_bars(frame: pd.DataFrame) -> Figure:
    """Left: the blocks of each partition, as parts of the model. Right: what a client uploads, in units of d."""
    uploads = upload_table(frame)
    labels = [f"{model}, {name}\n{classes} classes" for model, classes, name in uploads.index]
    palette = sns.color_palette("colorblind", frame["block"].nunique() - 1)
    colors = {str(j + 1): color for j, color in enumerate(palette)} | {"shared": "#555555"}
    with plt.rc_context({**STYLE, "axes.grid": False}):
        size = (11, 1.2 + 0.55 * len(labels))
        figure, (left, right) = plt.subplots(1, 2, figsize=size, layout="constrained", width_ratios=(2, 1), sharey=True)
        _stack(left, frame, labels, colors)
        _uploads(right, uploads, labels)
        left.invert_yaxis()
        figure.get_layout_engine().set(w_pad=0.12)
        plt.close(figure)
        return figure


def _stack(ax, frame: pd.DataFrame, labels: list[str], colors: dict) -> None:
    """One bar a partition, its blocks side by side."""
    table = frame.pivot_table("size_d", ["model", "classes", "partition"], "block", sort=False, fill_value=0)
    ends = table[list(colors)].cumsum(axis=1)
    for block, color in colors.items():
        size, end = table[block].to_numpy(), ends[block].to_numpy()
        ax.barh(labels, size, left=end - size, color=color, height=0.65)
        for place in np.flatnonzero(size > 0.05):
            middle = end[place] - size[place] / 2
            ax.text(middle, place, f"{size[place]:.2f}", ha="center", va="center", fontsize=8, color="white")
    ax.set(xlabel="size of the blocks (units of d)", xlim=(0, 1))
    names = [block if block == "shared" else f"block {block}" for block in colors]
    ax.legend(ax.containers, names, ncols=len(colors), **LEGEND)


def _uploads(ax, uploads: pd.DataFrame, labels: list[str]) -> None:
    """Nominal, mean and largest upload of each partition."""
    ax.hlines(labels, uploads["nominal"], uploads["largest"], color="#bbbbbb", lw=1)
    for column, marker, color in (("nominal", "|", "black"), ("largest", "D", "#d55e00"), ("mean", "o", "#0072b2")):
        size = 14 if marker == "|" else 6
        ax.plot(uploads[column], labels, marker, color=color, ms=size, mew=1.5 if marker == "|" else 0, label=column)
    ax.set(xlabel="upload of one client (units of d)", xlim=(0, 1))
    ax.tick_params(axis="y", length=0)
    ax.legend(ncols=3, **LEGEND)
