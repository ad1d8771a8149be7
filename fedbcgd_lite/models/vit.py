"""Vision transformers by timm, which is imported when the first one is made."""

import torch
from torch import nn


class ViTBase(nn.Module):
    """ViT-Base of Table 11: patches of 16 x 16 pixels, 12 layers of 768 channels; `width` has no effect.

    image: shape of one input, (channels, 224, 224).
    pretrained: begin with timm's published weights, except for the last layer, which is new.
    """

    def __init__(self, image=(3, 224, 224), n_classes: int = 100, width: int = 768, pretrained: bool = False):
        super().__init__()
        channels, *pixels = image
        if pixels != [224, 224]:
            raise ValueError(
                f"images of {pixels[0]} x {pixels[1]} pixels were given: ViT-Base takes 224 x 224; scale them up or "
                "use vit_small."
            )
        given = {"pretrained": pretrained, "num_classes": n_classes, "in_chans": channels}
        create = _timm().create_model
        self.vit = _with_weights(create, given) if pretrained else create("vit_base_patch16_224", **given)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.vit(x)  # (B, n_classes)


class ViTSmall(nn.Module):
    """A vision transformer for small images: patches of 4 x 4 pixels and 6 layers, so that N = 6 blocks are one each.

    width: channels of a patch (64 by default), in heads of 16 where 16 divides it and in one head otherwise.
    image: shape of one input, (channels, height, width) in pixels; 4 divides height and width.
    """

    def __init__(self, image=(3, 32, 32), n_classes: int = 10, width: int = 64):
        super().__init__()
        channels, *pixels = image
        if min(pixels) < 4 or pixels[0] % 4 or pixels[1] % 4:
            raise ValueError(
                f"images of {pixels[0]} x {pixels[1]} pixels were given: the patch of 4 x 4 pixels does not divide "
                "them; pad or cut them."
            )
        heads = width // 16 if width % 16 == 0 else 1
        size = {"img_size": tuple(pixels), "patch_size": 4, "embed_dim": width, "depth": 6, "num_heads": heads}
        self.vit = _timm().models.VisionTransformer(**size, in_chans=channels, num_classes=n_classes)
        for layer in self.vit.blocks:
            layer.attn.fused_attn = False  # for so few patches no slower, three times as fast in bfloat16, fit for vmap

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.vit(x)  # (B, n_classes)


def _timm():
    try:
        import timm
    except ImportError:
        raise ValueError("timm is not installed, and vision transformers need it: pip install timm.") from None
    return timm


def _with_weights(create, given: dict) -> nn.Module:
    try:
        return create("vit_base_patch16_224", **given)
    except Exception as error:  # a hub that cannot be reached raises many kinds
        raise ValueError(
            f"the pretrained weights of ViT-Base could not be had ({type(error).__name__}), and nothing random was put "
            "in their place: connect to the network once so that timm keeps them, or use vit_base."
        ) from error
