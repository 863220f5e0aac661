"""Modules in a federation: which parameters are trained and sent, which values are frozen, and which modules are
refused.

A parameter with `requires_grad=False` is frozen: it keeps its value and is not sent. A frozen part is a submodule with
frozen parameters only, such as a pretrained body. It may have buffers (the running statistics of batch normalisation)
and runs in evaluation mode: its output for a row depends on that row alone.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from equifed.dropout import KINDS, replace_dropout
from equifed.errors import ConfigError


def trained_parameters(module: nn.Module) -> dict[str, Tensor]:
    """Return the parameters that are trained and sent, by name."""
    return {name: value for name, value in module.named_parameters() if value.requires_grad}


def frozen_values(module: nn.Module) -> dict[str, Tensor]:
    """Return the frozen parameters and the buffers by name. Most models have none."""
    parameters = {name: value for name, value in module.named_parameters() if not value.requires_grad}
    return {**parameters, **dict(module.named_buffers())}


def fingerprint(module: nn.Module) -> str:
    """Return a hash of the frozen values, equal if all their bits are; empty if there are none."""
    values = frozen_values(module)
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(values):
        array = values[name].detach().cpu().contiguous()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)};".encode())
        digest.update(array.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest() if values else ""


def with_frozen(module: nn.Module, values: Mapping[str, np.ndarray]) -> nn.Module:
    """Return a copy of the module with these frozen values, or the module itself if there are none."""
    made = copy.deepcopy(module) if values else module
    own = frozen_values(made)
    if own.keys() != values.keys() or any(own[name].shape != values[name].shape for name in own):
        wrong = [name for name in {**own, **values} if name not in values or name not in own] or list(own)
        raise ConfigError(
            f"The model does not fit the stored one: its frozen values differ ({', '.join(wrong[:3])}). Give the model "
            "with which the run was trained."
        )
    with torch.no_grad():
        for name, value in own.items():
            value.copy_(torch.from_numpy(np.array(values[name])))
    return made


def copy_module(module: nn.Module) -> nn.Module:
    """Return a copy that shares the frozen values with the module."""
    return copy.deepcopy(module, {id(value): value for value in frozen_values(module).values()})


def prepare_module(module: nn.Module) -> nn.Module:
    """Return the module for training: itself, or a copy with frozen parts in evaluation mode and reproducible dropout
    (`equifed.dropout`). Raise a ConfigError if it cannot be federated."""
    check_module(module)
    drops = any(isinstance(part, _DropoutNd) and part.p > 0 for part in module.modules())
    if not drops and not frozen_values(module):
        return module
    made = copy.deepcopy(module)
    for part in _frozen_parts(made):
        part.eval()
    replace_dropout(made, _inside_frozen(made))
    return made


def _inside_frozen(module: nn.Module) -> set[int]:
    return {id(each) for part in _frozen_parts(module) for each in part.modules()}


def _frozen_parts(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the largest submodules that have parameters, all of them frozen."""
    for part in module.children():
        flags = {value.requires_grad for value in part.parameters()}
        if flags == {False}:
            yield part
        elif flags:
            yield from _frozen_parts(part)


def check_module(module: nn.Module) -> None:
    """Raise a ConfigError for a module that keeps hidden state or draws its own random numbers, which a federation
    cannot reproduce."""
    inside = _inside_frozen(module)
    buffers = [
        f"{name}.{own}".lstrip(".")
        for name, part in module.named_modules()
        if id(part) not in inside
        for own, _ in part.named_buffers(recurse=False)
    ]
    if buffers:
        raise ConfigError(
            f"The model {type(module).__name__} has buffers ({', '.join(buffers[:3])}), which are state outside its "
            "parameters: averaging them is not defined. Replace BatchNorm by GroupNorm or LayerNorm, and make constant "
            "buffers plain attributes; in a part with frozen parameters only (requires_grad=False) both may stay."
        )
    for name, part in module.named_modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and (id(part) not in inside or part.running_mean is None):
            raise ConfigError(
                f"The model has a batch normalisation layer ({name or type(part).__name__}): a row's output would "
                "depend on the other rows of its batch, even on padding. Use GroupNorm or LayerNorm."
            )
        if not isinstance(part, _DropoutNd) or id(part) in inside:
            continue
        if part.p >= 1:
            raise ConfigError(f"The model's dropout layer {name} has p = {part.p:g}: all is dropped. Set it below 1.")
        if type(part) not in KINDS and part.p > 0:
            raise ConfigError(
                f"The model has a layer {type(part).__name__} ({name}), which draws its own random numbers: a run "
                f"could not be repeated exactly. Use one of {', '.join(kind.__name__ for kind in KINDS)}."
            )
    odd = [name for name, value in frozen_values(module).items() if value.dtype == torch.bfloat16]
    if odd:
        raise ConfigError(
            f"The model's frozen part has numbers of type bfloat16 ({', '.join(odd[:3])}), which cannot be stored with "
            "the run. Convert it, e.g. body.float()."
        )
    if not any(True for _ in module.parameters()):
        raise ConfigError(f"The model {type(module).__name__} has no parameters, so there is nothing to train.")
    if not trained_parameters(module):
        raise ConfigError(
            f"All parameters of the model {type(module).__name__} are frozen (requires_grad=False), so there is "
            "nothing to train. Keep some of them trainable, such as those of the last layer."
        )


def ends_in_probabilities(out: Tensor) -> str:
    """Return the name of the operation that made a model's output, if it gives probabilities; otherwise "".

    Operations that only change the shape are skipped. The output must have been computed with gradients. A log-softmax
    does not count: its output can be used as logits.
    """
    return _last_step(out.grad_fn)


def _last_step(step: Any) -> str:
    while step is not None:
        name = step.name().rstrip("0123456789").removesuffix("Backward")
        if name in _PROBABILITIES:
            return _PROBABILITIES[name]
        before = [each for each, _ in step.next_functions]
        if name in ("Cat", "Stack"):  # such as columns for both classes
            found = [_last_step(each) for each in before]
            # columns of log-sigmoids are logits, as after a log-softmax
            return found[0] if all(found) and found[0] != "logsigmoid" else ""
        if name not in _SHAPES or not before:
            return ""
        step = before[0]
    return ""


_PROBABILITIES = {"Sigmoid": "sigmoid", "Softmax": "softmax", "LogSigmoid": "logsigmoid", "Hardsigmoid": "hardsigmoid"}
_SHAPES = (
    *("Squeeze", "Unsqueeze", "View", "UnsafeView", "Reshape", "ReshapeAlias", "Alias", "Clone", "Transpose", "T"),
    *("Permute", "Expand", "Select", "Slice", "Split", "Unbind", "Index", "IndexSelect", "ToCopy"),
    *("Clamp", "Rsub"),  # clamped away from 0 and 1; 1 - p
)
"""Operations that keep probabilities."""
