"""``dpledger calc`` and ``dpledger bounds``: certified numbers about a mechanism.

``calc`` computes on this machine, unless ``--url`` or ``DPLEDGER_URL`` names a service.
"""

from typing import Annotated, Any

import typer

from dpledger.cli.console import ApiKey, AsJson, Url, connect, make_app, show
from dpledger.transport import Json

calc = make_app("Certified accounting of DP-SGD.")
bounds = make_app("What no analysis of a sampler can promise.")

Sampler = Annotated[str, typer.Option(help="poisson, shuffle, balls_in_bins or full_batch.")]
Order = Annotated[str, typer.Option("--sampler", help="shuffle, balls_in_bins or poisson.")]
Rate = Annotated[float | None, typer.Option(min=0, max=1, help="Of poisson.")]
Noise = Annotated[float, typer.Option(min=0, help="σ: noise over max_grad_norm.")]
Steps = Annotated[int | None, typer.Option(min=1, help="Of poisson and full_batch.")]
Updates = Annotated[int | None, typer.Option(min=1, help="Per epoch: of shuffle, balls_in_bins.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Of shuffle and balls_in_bins.")]
Delta = Annotated[float, typer.Option(min=0, max=1)]
Neighboring = Annotated[str, typer.Option(help="add_or_remove_one, replace_one or zero_out.")]
TargetEpsilon = Annotated[float, typer.Option(min=0, help="More than 0.")]
MaxKappa = Annotated[float | None, typer.Option(min=0, max=1, help="Find σ for this κ.")]
RequiredUpdates = Annotated[int, typer.Option(min=1)]


@calc.command()
def epsilon(
    *,
    noise_multiplier: Noise,
    sampling_rate: Rate = None,
    steps: Steps = None,
    updates_per_epoch: Updates = None,
    epochs: Epochs = None,
    sampler: Sampler = "poisson",
    delta: Delta = 1e-5,
    neighboring: Neighboring = "add_or_remove_one",
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """The certified interval of ε at a δ."""
    mechanism = _dp_sgd(
        sampler=sampler,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        updates_per_epoch=updates_per_epoch,
        epochs=epochs,
    )
    answer = _account(
        url, api_key, "epsilon", mechanism=mechanism, delta=delta, neighboring=neighboring
    )
    show(answer, as_json=as_json)


@calc.command("delta")
def delta_of(
    *,
    noise_multiplier: Noise,
    epsilon: Annotated[float, typer.Option(min=0)],
    sampling_rate: Rate = None,
    steps: Steps = None,
    updates_per_epoch: Updates = None,
    epochs: Epochs = None,
    sampler: Sampler = "poisson",
    neighboring: Neighboring = "add_or_remove_one",
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """The certified interval of δ at an ε."""
    mechanism = _dp_sgd(
        sampler=sampler,
        noise_multiplier=noise_multiplier,
        sampling_rate=sampling_rate,
        steps=steps,
        updates_per_epoch=updates_per_epoch,
        epochs=epochs,
    )
    answer = _account(
        url, api_key, "delta", mechanism=mechanism, epsilon=epsilon, neighboring=neighboring
    )
    show(answer, as_json=as_json)


@calc.command("noise-multiplier")
def noise_multiplier_for(
    *,
    target_epsilon: TargetEpsilon,
    sampling_rate: Rate = None,
    steps: Steps = None,
    updates_per_epoch: Updates = None,
    epochs: Epochs = None,
    sampler: Sampler = "poisson",
    delta: Delta = 1e-5,
    neighboring: Neighboring = "add_or_remove_one",
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """A σ that is certain to keep to a target ε."""
    mechanism = _dp_sgd(
        sampler=sampler,
        sampling_rate=sampling_rate,
        steps=steps,
        updates_per_epoch=updates_per_epoch,
        epochs=epochs,
    )
    answer = _account(
        url,
        api_key,
        "noise-multiplier",
        mechanism=mechanism,
        target_epsilon=target_epsilon,
        delta=delta,
        neighboring=neighboring,
    )
    show(answer, as_json=as_json)


@calc.command("steps")
def steps_for(
    *,
    noise_multiplier: Noise,
    target_epsilon: TargetEpsilon,
    sampling_rate: Rate = None,
    sampler: Sampler = "poisson",
    delta: Delta = 1e-5,
    neighboring: Neighboring = "add_or_remove_one",
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """The largest number of steps that fits a target ε."""
    mechanism = _dp_sgd(
        sampler=sampler, noise_multiplier=noise_multiplier, sampling_rate=sampling_rate
    )
    answer = _account(
        url,
        api_key,
        "steps",
        mechanism=mechanism,
        target_epsilon=target_epsilon,
        delta=delta,
        neighboring=neighboring,
    )
    show(answer, as_json=as_json)


@bounds.command()
def separation(
    *,
    noise_multiplier: Noise,
    updates_per_epoch: RequiredUpdates,
    epochs: Annotated[int, typer.Option(min=1)] = 1,
    sampler: Order = "shuffle",
    neighboring: Neighboring = "zero_out",
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """How far a run is from revealing nothing: κ, with the published floor."""
    with connect(url, api_key) as client:
        answer = client.bound(
            "separation",
            noise_multiplier=noise_multiplier,
            updates_per_epoch=updates_per_epoch,
            epochs=epochs,
            sampler=sampler,
            neighboring=neighboring,
        )
    show(answer, as_json=as_json)


@bounds.command("minimum-noise")
def minimum_noise(
    *,
    updates_per_epoch: RequiredUpdates,
    epochs: Annotated[int, typer.Option(min=1)] = 1,
    max_kappa: MaxKappa = None,
    sampler: Order = "shuffle",
    neighboring: Neighboring = "zero_out",
    url: Url = None,
    api_key: ApiKey = None,
    as_json: AsJson = False,
) -> None:
    """The published threshold of σ, and the certified σ for a given κ."""
    with connect(url, api_key) as client:
        answer = client.bound(
            "minimum-noise",
            updates_per_epoch=updates_per_epoch,
            epochs=epochs,
            sampler=sampler,
            neighboring=neighboring,
            **({} if max_kappa is None else {"max_kappa": max_kappa}),
        )
    show(answer, as_json=as_json)


def _account(url: str | None, api_key: str | None, what: str, **body: Any) -> Json:
    if not url:
        from dpledger import offline  # noqa: PLC0415 - scipy, which no other verb needs

        return offline.account(what, **body)
    with connect(url, api_key) as client:
        return client.account(what, **body)


def _dp_sgd(**fields: Any) -> dict[str, Any]:
    """The mechanism's JSON from the options that were given; the service judges it."""
    return {"type": "dp_sgd", **{k: v for k, v in fields.items() if v is not None}}
