"""What an accounting answer tells its reader besides the number."""

from enum import Enum

from service.core.accounting.composition import Composition
from service.core.events import Neighboring


class Notice(Enum):
    """A warning with a stable ``code``, its meaning, and what to do about it."""

    NO_AMPLIFICATION = (
        "Every record takes part in every step: sampling gives no amplification.",
        "Use sampler poisson with a sampling_rate below 1 if the training allows it.",
    )
    SHUFFLE_NOT_AMPLIFIED = (
        "No amplification is proven for shuffled fixed-size batches: the upper end is that "
        "of one unamplified Gaussian release per epoch.",
        "Sample with poisson or balls_in_bins to be accounted with amplification.",
    )
    SHUFFLE_REMAINDER_UNKNOWN = (
        "It is not known whether the last short batch was dropped or kept: the worse of the "
        "two is charged.",
        'State remainder: "dropped" or "kept".',
    )
    BALLS_IN_BINS_WIDE = (
        "The bracket of balls_in_bins is valid but wide: unamplified from above, one epoch's "
        "max test from below.",
        "Ask /v1/bounds for the tight separation of random allocation.",
    )
    DELTA_EXCEEDS_TOTAL_VARIATION = (
        "delta is at least the total variation distance of the outputs: ε is 0.",
        "Ask for a smaller delta.",
    )
    CLT_NOT_ADMISSIBLE = (
        "The central limit approximation may understate ε; it bounds nothing.",
        "Use accountant auto for claims.",
    )
    WIDE_BRACKET = (
        "The bracket is certified but wide: the sharp methods do not reach this setting.",
        "Spend the upper end, or change the parameters.",
    )

    @property
    def code(self) -> str:
        """The stable name that clients may branch on."""
        return self.name

    @property
    def message(self) -> str:
        """What holds."""
        return self.value[0]

    @property
    def action(self) -> str:
        """What the caller can do."""
        return self.value[1]


def notices_for(composition: Composition, *, neighboring: Neighboring) -> tuple[Notice, ...]:
    """The notices that follow from the event alone."""
    found: dict[Notice, None] = {}
    if composition.has_full_batch:
        found[Notice.NO_AMPLIFICATION] = None
    for part in composition.epoch_parts:
        if part.sampler == "balls_in_bins":
            found[Notice.BALLS_IN_BINS_WIDE] = None
            continue
        found[Notice.SHUFFLE_NOT_AMPLIFIED] = None
        if neighboring == "add_or_remove_one" and part.remainder is None:
            found[Notice.SHUFFLE_REMAINDER_UNKNOWN] = None
    return tuple(found)
