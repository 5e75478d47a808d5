"""/v1/bounds: what a run can and cannot promise, whatever its accountant says."""

import time

from fastapi import APIRouter

from service.api.deps import AnyKey
from service.api.strict import StrictRoute
from service.core import bounds
from service.schemas.base import Interval
from service.schemas.bounds import (
    Bound,
    MinimumNoiseAnswer,
    MinimumNoiseRequest,
    PublishedBound,
    SeparationAnswer,
    SeparationRequest,
    Warned,
)

router = APIRouter(prefix="/v1/bounds", tags=["Bounds"], route_class=StrictRoute)


@router.post("/separation")
def separation(body: SeparationRequest, _caller: AnyKey) -> SeparationAnswer:
    """κ, the separation of the run's trade-off curve from random guessing, bracketed."""
    start = time.perf_counter()
    found = bounds.separation(**body.model_dump())
    return SeparationAnswer(
        kappa=Interval.from_core(found.kappa),
        total_variation=Interval.from_core(found.total_variation),
        published_bound=PublishedBound(
            sigma_threshold=found.published.sigma_threshold,
            kappa_floor=found.published.kappa_floor,
            verdict=found.published.verdict,
            source=found.published.source,
        ),
        bounds=[
            Bound(
                side=line.side,
                value=line.value,
                method=line.method,
                proven_for=list(line.proven_for),
                source=line.source,
            )
            for line in found.bounds
        ],
        implied_epsilon_floor=found.implied_epsilon_floor,
        warnings=[Warned(code=w.code, message=w.message) for w in found.warnings],
        elapsed_ms=round((time.perf_counter() - start) * 1e3, 3),
        **body.model_dump(),
    )


@router.post("/minimum-noise")
def minimum_noise(body: MinimumNoiseRequest, _caller: AnyKey) -> MinimumNoiseAnswer:
    """The published noise threshold, and the certified least noise for a target κ."""
    start = time.perf_counter()
    found = bounds.minimum_noise(**body.model_dump())
    kappa: Interval | None = None
    if found.noise_multiplier is not None:
        run = body.model_dump(exclude={"max_kappa"})
        at = bounds.separation(noise_multiplier=found.noise_multiplier, **run)
        kappa = Interval.from_core(at.kappa)
    return MinimumNoiseAnswer(
        published_threshold=found.published_threshold,
        noise_multiplier=found.noise_multiplier,
        kappa=kappa,
        closed_form=found.closed_form,
        elapsed_ms=round((time.perf_counter() - start) * 1e3, 3),
        **body.model_dump(),
    )
