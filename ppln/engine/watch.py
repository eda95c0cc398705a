"""Where the first number that is not finite came from.

A loss or a gradient that is not finite spreads to all weights with the next step, and then nothing tells
where it began. So the loop stops before that step, and its computation is done again here, with a look at
everything.

Dimensions: B batch, T time stamps, C channels.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed, nn
from torch.autograd.graph import Node

from ppln.errors import Stopped
from ppln.tasks.task import Batch, Task


class NotFinite(Stopped, RuntimeError):  # noqa: N818
    """Training met a number that is not finite; `what` says where. saved: the last step that is, if any."""

    advice = "lower learning_rate or clip_norm, and resume=True"

    def __init__(self, step: int, what: str, saved: int | None) -> None:
        kept = "nothing is saved yet" if saved is None else f"step {saved} is saved"
        if " of the batch has " in what:
            self.advice = "that is in the data: mend them, or leave out what has it"
        super().__init__(f"step {step}: {what}; {kept}")
        self.step, self.what = step, what


class _Finding(NamedTuple):
    order: int  # what is found earlier in a computation, by whichever process, is nearer to the cause
    text: str


def first_bad(
    model: nn.Module, task: Task, batches: Batch | Sequence[Batch], forward: Callable[[Batch], Tensor]
) -> str:
    """Where the first number that is not finite comes from in a step on these batches, in one sentence.

    model: with the weights from before the step, and not compiled: a compiled one shows no layers. batches:
    all that the step accumulates. forward: from a batch to the prediction, in the precision of the training.

    All processes of a run call this together. Afterwards the model has no gradients, and its running
    statistics have moved: it is for the end of a run.
    """
    batches = [batches] if isinstance(batches, Batch) else batches
    # Processes answer each question together before the next: forward and backward may wait for others.
    if found := _first_of_all(_bad_parameter(model) or _bad_batch(batches, task.unknown)):
        return found
    model.zero_grad()
    try:
        return _bad_step(model, task, batches, forward) or "nothing is wrong when the step is computed again"
    finally:
        model.zero_grad()


def _bad_step(
    model: nn.Module, task: Task, batches: Sequence[Batch], forward: Callable[[Batch], Tensor]
) -> str | None:
    for batch in batches:
        seen = _Forward(model)
        try:
            prediction = forward(batch)
        finally:
            seen.remove()
        loss = task.loss(prediction, batch)
        if found := _first_of_all(seen.bad or _bad_loss(prediction, loss)):
            return found
        backward = _Backward(loss, seen.layer_of)
        loss.backward()
        if found := _first_of_all(backward.bad):
            return found
    return _first_of_all(_bad_gradient(model))


def _first_of_all(own: _Finding | None) -> str | None:
    """The earliest finding of all processes."""
    if (
        not distributed.is_available()
        or not distributed.is_initialized()
        or distributed.get_world_size() == 1
    ):
        return own.text if own else None
    findings: list[_Finding | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(findings, own)
    found = [(finding.order, rank, finding.text) for rank, finding in enumerate(findings) if finding]
    if not found:
        return None
    _, rank, text = min(found)
    return f"rank {rank}: {text}"


def _bad_parameter(model: nn.Module) -> _Finding | None:
    for name, parameter in model.named_parameters():
        if count := _count(parameter):
            values = f"{count} of {parameter.numel()} values"
            return _Finding(0, f"parameter {name} is not finite even before the step ({values})")
    return None


_LAST = 2**31  # after all layers
_AXES = {"x": ("sample", "channel"), "t": ("sample", "time"), "target": ("sample", "time", "channel")}


def _bad_batch(batches: Sequence[Batch], unknown: Collection[str]) -> _Finding | None:
    for batch in batches:
        named = {"x": batch.x, "t": batch.t, "target": batch.target, **batch.extra}
        for name, values in named.items():
            if name not in unknown and (count := _count(values)):
                bad = (~values.isfinite()).nonzero()  # [count, dimensions]
                axes = zip(_AXES.get(name, ("sample",)), bad.unbind(1), strict=False)
                where = ", ".join(f"{axis} {_some(index)}" for axis, index in axes)
                return _Finding(1, f"{name} of the batch has {count} values that are not finite: {where}")
    return None


def _some(indices: Tensor) -> str:
    """The different ones among indices, if not too many."""
    different = indices.unique().tolist()
    return "+".join(map(str, different[:8])) + ("+..." if len(different) > 8 else "")


def _bad_loss(prediction: Tensor, loss: Tensor) -> _Finding | None:
    if _count(prediction):
        return _Finding(
            _LAST, "the prediction is not finite, though all layers of the model give finite values"
        )
    if _count(loss):
        return _Finding(_LAST, f"the loss is {loss.item()}, though the prediction is finite")
    return None


def _bad_gradient(model: nn.Module) -> _Finding | None:
    for order, (name, parameter) in enumerate(reversed(list(model.named_parameters()))):
        gradient = parameter.grad
        if gradient is None:
            continue
        if _count(gradient):
            return _Finding(order, f"the gradient of {name} is not finite")
        gradient = _local(gradient)
        if not gradient.norm().isfinite():
            size = f"values up to {gradient.abs().max():.2g}"
            return _Finding(order, f"the gradient of {name} is finite, but too large to have a norm: {size}")
    return None


class _Forward:
    """Looks at what each layer is given and gives, and remembers which layer made which node of the graph."""

    def __init__(self, model: nn.Module) -> None:
        self.bad: _Finding | None = None
        self.layer_of: dict[Node, str] = {}
        self._open: list[tuple[bool, set[Node]]] = []  # of the calls under way: are inputs finite, and whose
        self._calls: Counter[nn.Module] = Counter()
        self._done = 0  # calls that are over
        self._given_bad: str | None = None  # the first layer with a bad input
        self._hooks = []
        for name, module in model.named_modules():
            label = f"{f'layer {name}' if name else 'the model'} ({type(module).__name__})"
            self._hooks += [
                module.register_forward_pre_hook(partial(self._enter, label), with_kwargs=True),
                module.register_forward_hook(partial(self._leave, label)),
            ]

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def _enter(self, label: str, module: nn.Module, inputs: Any, named_inputs: Any) -> None:
        tensors = list(_tensors((inputs, named_inputs)))
        is_finite = not any(map(_count, tensors))
        self._open.append((is_finite, {t.grad_fn for t in tensors if t.grad_fn is not None}))
        self._calls[module] += 1
        if not is_finite and self._given_bad is None:
            self._given_bad = label

    def _leave(self, label: str, module: nn.Module, inputs: Any, output: Any) -> None:
        was_finite, before = self._open.pop()
        outputs = list(_tensors(output))
        self._done += 1
        if self.bad is None and was_finite and any(map(_count, outputs)):
            self.bad = _Finding(self._done, self._describe(label, module))
        # The layers within this one have labelled their nodes already; the rest was made by its own code.
        for node in _nodes(outputs, before):
            self.layer_of.setdefault(node, label)

    def _describe(self, label: str, module: nn.Module) -> str:
        call = f", in its call {self._calls[module]}," if self._calls[module] > 1 else ""
        text = f"{label}{call} is given finite values, and gives some that are not"
        if self._given_bad is not None:  # none of its layers is to blame
            text += f": between its layers, before {self._given_bad}"
        return text


class _Backward:
    """Looks at the gradients that each node of a loss's graph is given and gives."""

    def __init__(self, loss: Tensor, layer_of: Mapping[Node, str]) -> None:
        self.bad: _Finding | None = None
        self._order = 0
        for node in _nodes([loss], set()):
            # Not the node itself: it would hold what holds it.
            label = f"{layer_of.get(node, 'the loss')}, {node.name()}"
            node.register_hook(partial(self._look, label))

    def _look(
        self, label: str, given_back: tuple[Tensor | None, ...], given: tuple[Tensor | None, ...]
    ) -> None:
        self._order += 1
        if (
            self.bad is None
            and any(map(_count, _tensors(given_back)))
            and not any(map(_count, _tensors(given)))
        ):
            text = f"backward, {label} is given finite gradients, and gives some that are not"
            self.bad = _Finding(self._order, text)


def _nodes(roots: Sequence[Tensor], stop: set[Node]) -> Iterator[Node]:
    """The nodes that tensors come from, up to but without those at which to stop."""
    stack = [tensor.grad_fn for tensor in roots]
    seen = set(stop)
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [before for before, _ in node.next_functions]
            yield node


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)


def _local(tensor: Tensor) -> Tensor:
    """What this process has of it, if it is sharded."""
    return getattr(tensor, "to_local", lambda: tensor)()


@torch.no_grad()
def _count(tensor: Tensor) -> int:
    """How many values are not finite."""
    return int((~_local(tensor).isfinite()).sum())
