"""One record moves the clipped sum by at most C, and the sum is what a naive loop gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from service.core.datasets import builtin_dataset
from service.core.errors import InvalidInput
from service.core.jobs import MODELS, complete_model_options
from workers.trainer.clipping import clipped_sum, per_sample
from workers.trainer.models import build
from workers.trainer.self_test import check_sensitivity

# True and harmless: the first layer's input needs no gradient.
pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing")

CPU = torch.device("cpu")


def network(model="mlp", source="digits", *, seed=0):
    torch.manual_seed(seed)
    made = build(model, options=complete_model_options(model, {}), dataset=builtin_dataset(source))
    with torch.no_grad():  # away from the zero head, so that every layer has a gradient
        for parameter in made.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return made


def records(count, *, shape=(1, 8, 8), seed=1):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand((count, *shape), generator=generator), torch.randint(
        10, (count,), generator=generator
    )


def naive_sum(made, images, labels, bound):
    parameters = list(made.parameters())
    total = torch.zeros(sum(p.numel() for p in parameters), dtype=torch.float64)
    for image, label in zip(images, labels, strict=True):
        loss = functional.cross_entropy(made(image[None]), label[None])
        gradient = torch.cat([g.flatten().double() for g in torch.autograd.grad(loss, parameters)])
        total += gradient * min(1.0, bound / float(gradient.norm()))
    return total


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(("source", "side"), [("digits", 8), ("mnist5k", 28)])
@pytest.mark.parametrize("bound", [0.1, 1.0, 100.0])
def test_the_clipped_sum_is_that_of_a_naive_loop(model, source, side, bound):
    images, labels = records(12, shape=(1, side, side))
    expected = naive_sum(network(model, source), images, labels, bound)
    found = clipped_sum(
        per_sample(network(model, source)), images, labels, max_grad_norm=bound
    ).total
    assert float((found - expected).norm() / expected.norm()) < 1e-5


def test_micro_batches_change_nothing():
    images, labels = records(1100)
    expected = naive_sum(network(), images, labels, 0.5)
    found = clipped_sum(per_sample(network()), images, labels, max_grad_norm=0.5)
    assert found.record_count == 1100
    assert float((found.total - expected).norm() / expected.norm()) < 1e-5


def test_channels_last_memory_changes_nothing():
    images, labels = records(6, shape=(1, 28, 28))
    made = network("small_resnet", "mnist5k")
    for parameter in made.parameters():
        if parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)
    hooked = per_sample(made)
    found = clipped_sum(
        hooked, images.to(memory_format=torch.channels_last), labels, max_grad_norm=0.5
    ).total
    expected = naive_sum(network("small_resnet", "mnist5k"), images, labels, 0.5)
    assert float((found - expected).norm() / expected.norm()) < 1e-5


@given(
    scale=st.floats(1e-3, 1e6),
    bound=st.floats(1e-3, 1e3),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=40, deadline=None)
def test_one_record_contributes_at_most_the_clip_norm(scale, bound, seed):
    images, labels = records(1, seed=seed)
    hooked = per_sample(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    found = clipped_sum(hooked, images * scale, labels, max_grad_norm=bound)
    assert float(found.total.norm()) <= bound


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_record_that_is_not_finite_counts_as_zero(poison):
    images, labels = records(5)
    clean = clipped_sum(per_sample(network()), images[:4], labels[:4], max_grad_norm=0.5)
    images[4, 0, 0, 0] = poison
    found = clipped_sum(per_sample(network()), images, labels, max_grad_norm=0.5)
    assert found.nonfinite == 1
    assert found.record_count == 5
    assert float((found.total - clean.total).norm()) < 1e-6
    assert found.loss_total == pytest.approx(clean.loss_total)
    assert found.norm_total == pytest.approx(clean.norm_total)


def test_an_empty_batch_gives_the_zero_vector():
    images, labels = records(1)
    found = clipped_sum(per_sample(network()), images[:0], labels[:0], max_grad_norm=0.5)
    assert found.record_count == 0
    assert not found.total.any()


def test_clipped_records_are_counted():
    images, labels = records(9)
    hooked = per_sample(network())
    assert clipped_sum(hooked, images, labels, max_grad_norm=1e-3).clipped == 9
    assert clipped_sum(hooked, images, labels, max_grad_norm=1e3).clipped == 0


class Mixing(nn.Module):
    """Subtracts the batch's mean: no layer's name gives it away."""

    def forward(self, images):
        return images - images.mean(dim=0)


class Remembering(nn.Module):
    """Keeps a running mean, which would leave with the model."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, images):
        self.seen = self.seen + images.detach().nan_to_num(0.0, 0.0, 0.0).mean()
        return images


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm2d(1), nn.InstanceNorm2d(1, affine=True, track_running_stats=True)]
)
@pytest.mark.parametrize("frozen", [False, True])
def test_batch_statistics_are_refused_even_when_frozen(layer, frozen):
    for parameter in layer.parameters():
        parameter.requires_grad_(not frozen)
    with pytest.raises(InvalidInput) as caught:
        per_sample(nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 10)))
    assert caught.value.pointer == "/training/model"
    assert "GroupNorm" in caught.value.message


@pytest.mark.parametrize("layer", [Mixing(), Remembering()])
def test_the_self_test_finds_layers_that_mix_or_remember_records(layer):
    hooked = per_sample(nn.Sequential(layer, nn.Flatten(), nn.Linear(64, 10)))
    with pytest.raises(InvalidInput) as caught:
        check_sensitivity(hooked, builtin_dataset("digits"), max_grad_norm=0.5, device=CPU)
    assert caught.value.code == "SELF_TEST_FAILED"


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("source", ["digits", "mnist5k"])
def test_the_built_in_models_pass_the_self_test_and_keep_their_weights(model, source):
    made = network(model, source)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    hooked = per_sample(made)
    check_sensitivity(hooked, builtin_dataset(source), max_grad_norm=0.5, device=CPU)
    assert all(torch.equal(before[name], value) for name, value in made.state_dict().items())
