"""The paper's partitions as plain data: for each class of model and each name, exclusive blocks and the shared block.

A block is a list of layers, biases and normalisation beside their weights; "fc1[1/3]" is the first of three equal
slices of a layer. Sizes at width 64 are those of Tables 7-11 once what these leave out is counted.
"""

VGG11 = [("conv1", "conv2"), ("conv3", "conv4"), ("conv5", "conv6"), ("conv7", "conv8")]  # the rows of Table 8
VIT = ("vit.cls_token", "vit.pos_embed", "vit.patch_embed")  # they belong to the first block


def _vit(layers_a_block: int) -> tuple:
    """Six blocks of consecutive layers: the embeddings are in the first one, the last LayerNorm in the sixth."""
    runs = [range(j * layers_a_block, (j + 1) * layers_a_block) for j in range(6)]
    first, *others, last = [tuple(f"vit.blocks.{layer}" for layer in run) for run in runs]
    return ((*VIT, *first), *others, (*last, "vit.norm")), ("vit.head",)


PAPER = {
    # The shared block of Table 7 *is* its "Block 5": with N = 5 groups the fifth one has an empty exclusive block.
    ("LeNet5", "paper"): ((("conv1",), ("conv2",), ("fc1",), ("fc2",), ()), ("fc3",)),
    # The list in the script that the authors published.
    ("LeNet5", "authors"): ((("conv1",), ("conv2",), ("fc1",), (), ()), ("fc2", "fc3")),
    # Five blocks of similar size: the large layer of Table 7 is cut in three.
    ("LeNet5", "balanced5"): (
        (("conv1", "conv2"), ("fc1[1/3]",), ("fc1[2/3]",), ("fc1[3/3]",), ("fc2",)),
        ("fc3",),
    ),
    ("VGG11", "paper"): ((*VGG11, ("fc1",)), ("fc2",)),  # Table 8, with the head of the authors' script
    ("VGG11Table8", "paper"): ((*VGG11, ("fc1", "fc2")), ("fc3",)),
    ("VGG19", "paper"): (  # Table 10
        (
            ("conv1", "conv2", "conv3", "conv4", "conv5", "conv6", "conv7", "conv8"),
            ("conv9", "conv10"),
            ("conv11", "conv12"),
            ("conv13", "conv14"),
            ("conv15", "conv16", "fc1", "fc2"),
        ),
        ("fc3",),
    ),
    ("ResNet18", "paper"): (  # Table 9
        (("conv1", "norm1", "layer1"), ("layer2",), ("layer3",), ("layer4.0",), ("layer4.1",)),
        ("fc",),
    ),
    # Table 11 divides the size by six, which no boundary between layers does: six runs of whole layers here.
    ("ViTBase", "paper"): _vit(2),
    ("ViTSmall", "paper"): _vit(1),
}
