"""The linear layer that models of a sweep share: equal to torch's, in values and gradients, however it is vmapped."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vjp, vmap

from equifed.models import NetworkLinear
from equifed.models import SharedLinear as Linear

LANES, SETTINGS, ROWS, IN, OUT = 3, 4, 7, 5, 2


@pytest.mark.parametrize("bias", [True, False])
def test_like_torchs_under_nested_vmap(bias: bool) -> None:
    torch.manual_seed(0)
    x = torch.randn(LANES, ROWS, IN)
    parameters = {"weight": torch.randn(LANES, SETTINGS, OUT, IN)}
    if bias:
        parameters["bias"] = torch.randn(LANES, SETTINGS, OUT)
    cotangents = torch.randn(6, ROWS, OUT)
    found = []
    for layer in (Linear(IN, OUT, bias=bias), nn.Linear(IN, OUT, bias=bias)):

        def one(own, rows, layer=layer):  # type: ignore[no-untyped-def]
            out, pull = vjp(lambda own: functional_call(layer, own, (rows,)), own)
            through = grad(lambda rows: functional_call(layer, own, (rows,)).square().sum())(rows)
            return out, vmap(pull)(cotangents)[0], through

        found.append(vmap(lambda own, rows, one=one: vmap(lambda each: one(each, rows))(own))(parameters, x))
    torch.testing.assert_close(found[0], found[1], rtol=1e-5, atol=1e-5)


def test_second_derivatives_and_single_rows() -> None:
    torch.manual_seed(0)
    ours, theirs = Linear(IN, OUT), nn.Linear(IN, OUT)
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(ROWS, IN)
    torch.testing.assert_close(ours(x[0]), theirs(x[0]))
    own = dict(ours.named_parameters())
    seconds = [
        grad(
            lambda p, layer=layer: (
                grad(lambda q: functional_call(layer, q, (x,)).pow(3).sum())(p)["weight"].pow(2).sum()
            )
        )(own)
        for layer in (ours, theirs)
    ]
    torch.testing.assert_close(seconds[0], seconds[1], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [Linear, NetworkLinear])
def test_many_models_on_the_same_rows_are_one_product(kind: type[Linear]) -> None:
    layer, x, weight = kind(IN, OUT, bias=False), torch.randn(64, IN), torch.randn(100, OUT, IN)
    with torch.no_grad(), torch.profiler.profile(record_shapes=True) as profile:
        vmap(lambda own: functional_call(layer, {"weight": own}, (x,)))(weight)
    products = [event.input_shapes[:2] for event in profile.events() if event.name in ("aten::mm", "aten::bmm")]
    assert products == [[[64, IN], [IN, 100 * OUT]]]


def test_a_networks_layer_predicts_together_and_trains_as_torchs() -> None:
    torch.manual_seed(0)
    ours, theirs = NetworkLinear(IN, OUT), nn.Linear(IN, OUT)
    x = torch.randn(LANES, ROWS, IN)
    own = {"weight": torch.randn(LANES, SETTINGS, OUT, IN), "bias": torch.randn(LANES, SETTINGS, OUT)}

    def nested(work):  # type: ignore[no-untyped-def]
        return vmap(lambda own, rows: vmap(lambda each: work(each, rows))(own))(own, x)

    with torch.no_grad():
        both = [nested(lambda p, rows, layer=layer: functional_call(layer, p, (rows,))) for layer in (ours, theirs)]
        torch.testing.assert_close(*both, rtol=1e-5, atol=1e-5)
        # inside grad the very same operations, so the very same bits
        both = [
            nested(grad(lambda p, rows, layer=layer: functional_call(layer, p, (rows,)).square().sum()))
            for layer in (ours, theirs)
        ]
    torch.testing.assert_close(*both, rtol=0, atol=0)
