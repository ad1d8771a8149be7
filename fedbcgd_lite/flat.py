"""A module as functions of one flat vector x of d floats."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .blocks import Blocks


class Flat:
    """predict, loss and gradient of a module as functions of x, laid out as `blocks` says.

    The module is copied; its own values become x0. `loss(output, target)` is a mean over the batch.
    """

    def __init__(self, module: nn.Module, blocks: Blocks, loss: Callable[[Tensor, Tensor], Tensor], device="cpu"):
        self.module = copy.deepcopy(module).to(device)
        self.loss_function = loss
        parameters = {name: p.detach() for name, p in self.module.named_parameters() if p.requires_grad}
        self.names = blocks.order or tuple(parameters)
        self.shapes = [parameters[name].shape for name in self.names]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.x0 = torch.cat([parameters[name].flatten() for name in self.names])  # (d,)

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """x as named parameters: views made by one split, whose backward is one concatenation."""
        pieces = x.split(self.sizes)
        return {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, self.shapes)}

    def predict(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The module's output at parameters x."""
        return functional_call(self.module, self.unflatten(x), (inputs,))

    def gradient(self, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(gradient (d,), loss ()) of the mean loss over one batch at x."""
        x = x.detach().requires_grad_()
        loss = self.loss_function(self.predict(x, inputs), targets)
        (gradient,) = torch.autograd.grad(loss, x)
        return gradient, loss.detach()

    def to_module(self, x: Tensor) -> nn.Module:
        """A copy of the module with x as its parameters."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            for name, value in self.unflatten(x).items():
                module.get_parameter(name).copy_(value)
        return module
