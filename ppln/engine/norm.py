"""Batch norm over the batches of all processes, so that two of them train as one with twice the batch.

Torch has this for GPUs, in nn.SyncBatchNorm. Here it is for CPUs as well, with the same contract: the
gradients of weight and bias are of the process's own batch, and summing them is left to DDP.

Dimensions: B batch, C channels, * space, R processes.
"""

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm


def synchronize(model: nn.Module, device_type: str) -> nn.Module:
    """The model, whose nn.BatchNorm1d, 2d and 3d from now on normalise over the batches of all processes.

    Call it before the model is wrapped for training. Names in the state_dict stay, a layer in several places
    stays one, and in eval mode nothing changes. With one process, neither does anything.
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)}
    for name, layer in layers.items():
        if type(layer) not in _SYNCHRONIZED and not isinstance(layer, (nn.SyncBatchNorm, _Synchronized)):
            raise ValueError(
                f"model: {name} is a {type(layer).__name__}, which is not known to work on many processes; "
                f"use nn.BatchNorm1d, 2d or 3d"
            )
    if device_type == "cpu":
        for layer in layers.values():
            # The layer stays the object it is, wherever it is used and whoever has put hooks on it.
            layer.__class__ = _SYNCHRONIZED.get(type(layer), type(layer))
        return model
    # Torch's own conversion, layer by layer: of one layer in several places it would make several.
    new = {layer: nn.SyncBatchNorm.convert_sync_batchnorm(layer) for layer in layers.values()}
    for parent in list(model.modules()):
        for key, child in parent._modules.items():
            if child in new:
                parent._modules[key] = new[child]
    return new.get(model, model)  # type: ignore[call-overload]


class _Synchronized(_BatchNorm):
    def forward(self, input: Tensor) -> Tensor:
        is_initialized = distributed.is_available() and distributed.is_initialized()
        is_alone = not is_initialized or distributed.get_world_size() == 1
        if is_alone or not self.training:
            return super().forward(input)
        self._check_input_dim(input)
        return _normalize_over_all(self, input)


class _Synchronized1d(_Synchronized, nn.BatchNorm1d):
    pass


class _Synchronized2d(_Synchronized, nn.BatchNorm2d):
    pass


class _Synchronized3d(_Synchronized, nn.BatchNorm3d):
    pass


_SYNCHRONIZED: dict[type[nn.Module], type[_BatchNorm]] = {
    nn.BatchNorm1d: _Synchronized1d,
    nn.BatchNorm2d: _Synchronized2d,
    nn.BatchNorm3d: _Synchronized3d,
}


def _normalize_over_all(layer: _BatchNorm, x: Tensor) -> Tensor:
    mean, var, count = _statistics(x.detach())  # [C], [C], a number
    if layer.track_running_stats:
        assert layer.running_mean is not None
        assert layer.running_var is not None
        assert layer.num_batches_tracked is not None
        layer.num_batches_tracked.add_(1)
        # Without a momentum, the average over all batches so far.
        new = 1 / int(layer.num_batches_tracked) if layer.momentum is None else layer.momentum
        unbiased = var * (count / (count - 1))
        for running, value in ((layer.running_mean, mean), (layer.running_var, unbiased)):
            running.copy_((1 - new) * running + new * value)
    return _Normalize.apply(x, layer.weight, layer.bias, mean, var, count, layer.eps)


def _statistics(x: Tensor) -> tuple[Tensor, Tensor, float]:
    """Over all processes, for x [B, C, *]: mean and variance of each channel [C], of how many values."""
    channels, count = x.shape[1], x.numel() // x.shape[1]
    own = x.new_zeros(2 * channels + 1, dtype=torch.float64)
    if count:  # a process may have nothing
        # Half precision is for storage: torch would round the statistics as well.
        x = x.to(torch.promote_types(x.dtype, torch.float32))
        own[:channels], own[channels:-1] = torch.batch_norm_update_stats(x, None, None, 0.0)
        own[-1] = count
    gathered = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(gathered, own)
    # [R, C], [R, C], [R, 1]
    means, variances, counts = torch.stack(gathered).split([channels, channels, 1], 1)
    total = counts.sum()
    if total <= 1:
        raise ValueError(
            f"batch norm: {int(total)} value per channel over all processes; it takes at least 2 to train"
        )
    shares = counts / total
    mean = (shares * means).sum(0)
    # Within processes and between them: no difference of large numbers.
    var = (shares * (variances + (means - mean).square())).sum(0)
    return mean, var, float(total)


class _Normalize(torch.autograd.Function):
    """y = weight (x - mean) scale + bias with scale = 1 / sqrt(var + eps); mean and var are of the x of all.

    Most of it is done by torch's kernels for evaluation, for which mean and var are given.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,  # [B, C, *]
        weight: Tensor | None,  # [C]
        bias: Tensor | None,  # [C]
        mean: Tensor,  # [C], float64
        var: Tensor,  # [C], float64
        count: float,
        eps: float,
    ) -> Tensor:
        ctx.save_for_backward(x, weight, mean, var)
        ctx.count, ctx.eps = count, eps
        dtype = torch.promote_types(x.dtype, torch.float32)
        return functional.batch_norm(x, mean.to(dtype), var.to(dtype), weight, bias, eps=eps)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, var = ctx.saved_tensors
        scale = (var + ctx.eps).rsqrt()
        dtype = torch.promote_types(x.dtype, torch.float32)
        by_y, wide = gradients[0].to(dtype), x.to(dtype)  # [B, C, *]
        if x.numel():
            # As if mean and var were constants. The sums [C], by weight and bias, are of this process.
            by_x, by_weight, by_bias = torch.ops.aten.native_batch_norm_backward(
                by_y, wide, weight, mean.to(dtype), var.to(dtype), None, None, False, ctx.eps, [True] * 3
            )
        else:  # for which torch's kernel is not made
            by_x, by_weight, by_bias = by_y, torch.zeros_like(scale), torch.zeros_like(scale)
        if ctx.needs_input_grad[0]:
            # x moves the mean and the scale for all processes, so that all have a say in its gradient.
            along_scale, along_mean = sums = torch.stack([by_weight, by_bias]).double()
            distributed.all_reduce(sums)
            factor = scale / ctx.count if weight is None else weight * scale / ctx.count
            shape = -1, *(1 for _ in x.shape[2:])
            offset, slope, center = (
                c.to(dtype).view(shape) for c in (factor * along_mean, factor * along_scale * scale, mean)
            )
            by_x = (by_x - offset).addcmul_(wide - center, slope, value=-1).to(x.dtype)
        has_weight, has_bias = ctx.needs_input_grad[1:3]
        return by_x, by_weight if has_weight else None, by_bias if has_bias else None, None, None, None, None
