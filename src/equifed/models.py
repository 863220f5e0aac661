"""Models: small specifications that become an `nn.Module` once the data's shape is known.

Any `nn.Module` can be used instead, with buffers only in frozen parts (`equifed.modules`): an instance starts every run
from its current parameters; a function without arguments that returns a module gives every seed its own
initialisation.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor, nn

from equifed.errors import ConfigError, check_number, unknown_name
from equifed.modules import trained_parameters
from equifed.registry import Registry

Parameters = dict[str, Tensor]
Init = Literal["torch", "zeros"] | float


@runtime_checkable
class Model(Protocol):
    """A specification that builds its module and initialises it from a NumPy generator."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module: ...
    def initialise(self, module: nn.Module, rng: np.random.Generator) -> Parameters: ...


ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "tanh": nn.Tanh, "sigmoid": nn.Sigmoid, "gelu": nn.GELU}


class _Initialised:
    """The base of specifications: weights and biases come from a NumPy generator, so that a seed gives the same numbers
    on every machine and torch version."""

    init: Init = "torch"
    """Initialisation: "torch" (uniform in +-1/sqrt(fan in), torch's default for linear and convolution layers),
    "zeros", or the standard deviation of normal weights with zero biases."""

    def __post_init__(self) -> None:
        if not isinstance(self.init, str):
            check_number("init", self.init, above=0, what="A standard deviation")
        elif self.init not in ("torch", "zeros"):
            text = f'must be "torch", "zeros" or a standard deviation, got {self.init!r}.'
            raise ConfigError(text, key="init", value=self.init)

    def initialise(self, module: nn.Module, rng: np.random.Generator) -> Parameters:
        values: Parameters = {}
        fan_in = 1
        for name, parameter in trained_parameters(module).items():
            shape = tuple(parameter.shape)
            if parameter.dim() > 1:
                fan_in = math.prod(shape[1:])
            if self.init == "zeros":
                array = np.zeros(shape)
            elif self.init == "torch":
                array = rng.uniform(-1, 1, shape) / math.sqrt(fan_in)
            else:
                array = rng.normal(0, self.init, shape) if parameter.dim() > 1 else np.zeros(shape)
            values[name] = torch.from_numpy(array.astype(np.float32))
        return values


class Product(torch.autograd.Function):
    """The product a @ b of matrices."""

    @staticmethod
    def forward(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None]:
        a, b = ctx.saved_tensors
        for_a, for_b = ctx.needs_input_grad
        return (
            Product.apply(gradient, b.transpose(0, 1)) if for_a else None,
            Product.apply(a.transpose(0, 1), gradient) if for_b else None,
        )

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor) -> tuple[Tensor, int]:
        if in_dims[0] is None:  # many b: concatenate their columns
            b = b.movedim(in_dims[1], 1)  # type: ignore[arg-type]
            inner, many, columns = b.shape
            return Product.apply(a, b.reshape(inner, many * columns)).reshape(a.shape[0], many, columns), 1
        if in_dims[1] is None:  # many a: concatenate their rows
            a = a.movedim(in_dims[0], 0)
            many, rows, inner = a.shape
            return Product.apply(a.reshape(many * rows, inner), b).reshape(many, rows, b.shape[1]), 0
        a, b = a.movedim(in_dims[0], 0), b.movedim(in_dims[1], 0)
        # few rows times a large matrix: up to 3 times as fast as the large matrix times few columns
        return ((b.mT @ a.mT).mT if b.shape[-1] < a.shape[-2] else a @ b), 0


class SharedLinear(nn.Linear):
    """An `nn.Linear` that needs one matrix product, even if many models are applied to the same rows.

    Under `vmap`, torch's layer copies the rows once for every model before it multiplies. Here models that share their
    rows (the settings of a sweep), and cotangents that share a pass, are concatenated as columns of one product.
    """

    def forward(self, x: Tensor) -> Tensor:
        if x.dim() != 2:
            return super().forward(x)
        out: Tensor = Product.apply(x, self.weight.transpose(0, 1))
        return out if self.bias is None else out + self.bias


class NetworkLinear(SharedLinear):
    """A `SharedLinear` without gradients, for predictions of many models on the same rows: a server's validation set,
    personal models on a common test set. With gradients it is torch's layer, which trains faster."""

    def forward(self, x: Tensor) -> Tensor:
        return nn.Linear.forward(self, x) if torch.is_grad_enabled() else super().forward(x)


def _flat(shape: tuple[int, ...]) -> tuple[list[nn.Module], int]:
    return ([nn.Flatten()] if len(shape) > 1 else []), math.prod(shape)


@dataclass(frozen=True)
class MLP(_Initialised):
    """A fully connected network."""

    hidden: tuple[int, ...] = (32,)
    """Width of each hidden layer."""
    activation: str = "relu"
    """Activation: relu, tanh, sigmoid or gelu."""
    init: Init = "torch"
    """Initialisation: "torch" (uniform in +-1/sqrt(fan in)), "zeros", or the standard deviation of normal weights with
    zero biases."""
    bias: bool = True
    """True if layers have biases; methods that rank edges (frl, e2fl) need networks without biases."""
    dropout: float = 0.0
    """Share of units after each hidden layer that are dropped in a step of local training; below 1."""

    def __post_init__(self) -> None:
        if not isinstance(self.hidden, list | tuple):
            text = f"lists the width of each hidden layer, e.g. (10,), got {self.hidden!r}."
            raise ConfigError(text, key="hidden", value=self.hidden)
        object.__setattr__(self, "hidden", tuple(self.hidden))
        for width in self.hidden:
            check_number("hidden", width, whole=True, low=1, high=1_000_000, what="The width of a hidden layer")
        if self.activation not in ACTIVATIONS:
            raise unknown_name("activation", self.activation, ACTIVATIONS, key="activation")
        check_number("dropout", self.dropout, low=0)
        if self.dropout >= 1:
            raise ConfigError(f"must be below 1, got {self.dropout}.", key="dropout", value=self.dropout)
        super().__post_init__()

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers, width = _flat(shape)
        for size in self.hidden:
            layers += [NetworkLinear(width, size, bias=self.bias), ACTIVATIONS[self.activation]()]
            layers += [nn.Dropout(self.dropout)] if self.dropout else []
            width = size
        return nn.Sequential(*layers, NetworkLinear(width, outputs, bias=self.bias))


@dataclass(frozen=True)
class Logistic(_Initialised):
    """Logistic regression: one linear layer; binary labels have one output, more classes one each."""

    init: Init = "zeros"
    """Initialisation, as for MLP; zero is the usual start of a convex problem."""

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers, width = _flat(shape)
        return nn.Sequential(*layers, SharedLinear(width, outputs))


@dataclass(frozen=True)
class Linear(Logistic):
    """Linear regression."""


@dataclass(frozen=True)
class LeNet(_Initialised):
    """Two 3x3 convolutions and two linear layers for 28x28 images, as in E2FL's Table 7, without biases."""

    classes: int | None = None
    """Number of outputs. None: the number of classes in the data."""

    def __post_init__(self) -> None:
        if self.classes is not None:
            check_number("classes", self.classes, whole=True, low=1, high=1_000_000)
        super().__post_init__()

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if len(shape) != 3 or shape[1:] != (28, 28):
            raise ConfigError(f"LeNet takes images of shape [channels, 28, 28]; the data has {list(shape)}.")
        return nn.Sequential(
            nn.Conv2d(shape[0], 32, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.Conv2d(32, 64, 3, padding=1, bias=False),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(64 * 14 * 14, 128, bias=False),
            nn.ReLU(),
            nn.Linear(128, self.classes or outputs, bias=False),
        )


REGISTRY: Registry[Any] = Registry(
    "model",
    "equifed.models",
    {"logistic": Logistic, "linear": Linear, "mlp": MLP, "lenet": LeNet},
    fits=lambda thing: (
        isinstance(thing, Model | nn.Module)
        or inspect.isfunction(thing)
        or (isinstance(thing, type) and issubclass(thing, nn.Module))
    ),
    must_be="a specification (a dataclass with build and initialise), an nn.Module, or a function that makes one",
)


def build(model: Any, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """Build the module of a user's model: a specification, a module, or a function or class that makes one. It is built
    with the same random numbers every time, so that its frozen values are the same for all seeds and on all machines;
    trained parameters are initialised later."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return _build(model, shape, outputs)


def _build(model: Any, shape: tuple[int, ...], outputs: int) -> nn.Module:
    if isinstance(model, type) and not issubclass(model, nn.Module):
        raise ConfigError(f"model is the class {model.__name__}; give an instance, e.g. {model.__name__}().")
    if isinstance(model, nn.Module):
        return model
    if not isinstance(model, type) and isinstance(model, Model):
        return model.build(shape, outputs)
    if not callable(model):
        raise ConfigError(f"model must be from equifed.models, an nn.Module or a function making one, got {model!r}.")
    try:
        module = model()
    except TypeError as error:
        raise ConfigError(
            f"A function or class given as model is called without arguments, which failed: {error}."
        ) from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"The model function returned {type(module).__name__}, not an nn.Module.")
    return module


def describe(model: Any) -> dict[str, Any] | None:
    """Return the model's description for `from_description`, in JSON's types; None if it cannot be found by a name,
    such as a module made by hand."""
    thing = type(model) if dataclasses.is_dataclass(model) and not isinstance(model, type) else model
    name = REGISTRY.name_of(thing)
    try:
        if REGISTRY[name] is not thing:
            return None
    except ConfigError:
        return None
    return {"kind": name} | ({} if thing is model else dataclasses.asdict(model))


def from_description(description: Mapping[str, Any]) -> Any:
    """Return the model with this description, from `describe`."""
    options = {
        key: tuple(value) if isinstance(value, list) else value for key, value in description.items() if key != "kind"
    }
    thing = REGISTRY[description["kind"]]
    return thing(**options) if isinstance(thing, type) and dataclasses.is_dataclass(thing) else thing
