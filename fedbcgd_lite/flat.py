"""A module as functions of one flat vector x of d floats, or of S vectors at once."""

import copy
from collections.abc import Callable
from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from .blocks import Blocks


class Flat:
    """predict, loss and gradient of a module as functions of x, laid out as `blocks` says.

    The module is copied; its own values become x0. `loss(output, target)` is a mean over the batch. With bf16=True the
    matrix products of `gradient` are formed from numbers rounded to bfloat16; compiled=True sends it through
    torch.compile. One thread uses one Flat at a time.
    """

    def __init__(
        self, module: nn.Module, blocks: Blocks, loss: Callable, device: str = "cpu", bf16=False, compiled=False
    ):
        self.module = copy.deepcopy(module).to(device)
        self.loss_function = loss
        self.products = torch.autocast(device.partition(":")[0], torch.bfloat16) if bf16 else nullcontext()
        parameters = {name: p.detach() for name, p in self.module.named_parameters() if p.requires_grad}
        self.names = blocks.order or tuple(parameters)
        self.shapes = [parameters[name].shape for name in self.names]
        self.sizes = [shape.numel() for shape in self.shapes]
        self.x0 = torch.cat([parameters[name].flatten() for name in self.names])  # (d,)
        self._predict_of_many, self._loss_by_vmap = (
            vmap(f, randomness="different") for f in (self.predict, self._loss)
        )
        losses = self._loss, self._losses
        self._loss_of_one, self._loss_of_many = (
            [torch.compile(f, dynamic=False) for f in losses] if compiled else losses
        )

    def unflatten(self, x: Tensor) -> dict[str, Tensor]:
        """x as named parameters: views made by one split, whose backward is one concatenation."""
        pieces = x.split(self.sizes)
        return {name: piece.view(shape) for name, piece, shape in zip(self.names, pieces, self.shapes)}

    def predict(self, x: Tensor, inputs: Tensor) -> Tensor:
        """The module's output at parameters x (d,)."""
        return functional_call(self.module, self.unflatten(x), (inputs,))

    def gradient(self, x: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """(gradient (d,), loss ()) of the mean loss over one batch at x.

        For x (S, d), inputs (S, B, ...) and targets (S, B, ...): those of S clients together, (S, d) and (S,).
        """
        x = x.detach().requires_grad_()
        loss = (self._loss_of_one if x.ndim == 1 else self._loss_of_many)(x, inputs, targets)
        (gradient,) = torch.autograd.grad(loss.sum(), x)
        return gradient, loss.detach()

    def _loss(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        with self.products:
            output = self.predict(x, inputs)
        return self.loss_function(output.to(x.dtype), targets)

    def _losses(self, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
        if self.loss_function is not F.cross_entropy:
            return self._loss_by_vmap(x, inputs, targets)
        with self.products:
            output = self._predict_of_many(x, inputs).to(x.dtype)
        losses = F.cross_entropy(output.flatten(0, 1), targets.flatten(0, 1), reduction="none")  # faster than by vmap
        return losses.view(len(x), -1).mean(1)

    def to_module(self, x: Tensor) -> nn.Module:
        """A copy of the module with x as its parameters."""
        module = copy.deepcopy(self.module)
        with torch.no_grad():
            for name, value in self.unflatten(x).items():
                module.get_parameter(name).copy_(value)
        return module
