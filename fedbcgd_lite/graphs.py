"""Gradients as CUDA graphs: the kernels of one gradient, launched together instead of one by one."""

from collections.abc import Callable

import torch
from torch import Tensor

WARM_UP = 3  # calls before the capture, as the kernels are chosen then


class GraphedGradient:
    """A function (x, inputs, targets) -> (gradient, loss) on a GPU that is captured once for each shape of its input.

    What cannot be captured is called as it is.
    """

    def __init__(self, function: Callable):
        self.function = function
        self.captured: dict[tuple, tuple | None] = {}  # shapes: (graph, static input, static output)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, Tensor]:
        shapes = tuple((t.shape, t.dtype) for t in tensors)
        if shapes not in self.captured:
            self.captured[shapes] = self._capture(tensors)
        if self.captured[shapes] is None:
            return self.function(*tensors)
        graph, inputs, outputs = self.captured[shapes]
        for static, tensor in zip(inputs, tensors):
            static.copy_(tensor)
        graph.replay()
        return tuple(output.clone() for output in outputs)

    def _capture(self, tensors: tuple[Tensor, ...]) -> tuple | None:
        """A graph with its own input and output; None where a kernel or the model refuses to be captured."""
        inputs = tuple(tensor.detach().clone() for tensor in tensors)
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self.function(*inputs)
            torch.cuda.current_stream().wait_stream(stream)
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                outputs = self.function(*inputs)
        except RuntimeError:
            torch.cuda.synchronize()
            return None
        return graph, inputs, outputs
