"""Cases of attention with very many requests, or keys: they have the smallest heads."""

from dataclasses import dataclass

from kernelpair.contract.case import Case

MOST_REQUESTS, MOST_KEYS = 512, 2**16  # of a case with larger heads,
FEW_REQUESTS, FEW_KEYS = 17, 300  # which has no more than these where it would have more
SMALL_HEADS = 64  # elements of a key, or of a query's heads
REQUESTS = ("extends", "prefixes", "rows", "lens", "encoder")
WIDTHS = ("width", "width_v", "latent", "rope")


@dataclass(frozen=True, kw_only=True)
class CrowdCase(Case):
    """A case whose requests become few, and their keys, as soon as its heads are large: a crowd, and a request of more keys than
    16 bits count, are drawn with heads of a few elements, but a provider's limits may ask for others, and for gigabytes then."""

    def __post_init__(self) -> None:
        super().__post_init__()
        values = vars(self)
        widths = sum(values[name] for name in WIDTHS if type(values.get(name)) is int)
        if values["heads"] * widths <= SMALL_HEADS:
            return
        for name in REQUESTS:
            entries = values.get(name) or ()
            if len(entries) > MOST_REQUESTS or max(entries, default=0) > MOST_KEYS:
                object.__setattr__(self, name, tuple(min(entry, FEW_KEYS) for entry in entries[:FEW_REQUESTS]))
                if "pads" in values:
                    object.__setattr__(self, "pads", tuple(b for b in values["pads"] if b < FEW_REQUESTS))
