"""The weights that ship: an average of those that training went through."""

import copy

from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn


class Average:
    """An exponential moving average of a model's parameters, in a copy of the model."""

    def __init__(self, model: nn.Module, decay: float = 0.999):
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        self._averages: list[Tensor] = list(self.model.parameters())
        self._parameters: list[Tensor] = list(model.parameters())
        self._approach = get_ema_multi_avg_fn(decay)

    def update(self) -> None:
        """Come a little nearer to the model."""
        self._approach(self._averages, self._parameters, None)
