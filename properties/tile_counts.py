"""What a bench row costs in tile instructions: those that the amx tier executes beside the least that the work needs."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kernelpair.timing.machine import Uncounted

if TYPE_CHECKING:
    from kernelpair.contract.pair import BenchRow, Pair

PRODUCT_OPERATIONS = 2 * 16 * 16 * 32
"""Of one product of full bf16 tiles."""
PRODUCT_CYCLES, LOAD_CYCLES, STORE_CYCLES = 16, 8, 16
"""From the published tables: one product after the other, one load or store after the other."""
BLOCK_LOADS = 1.0
"""Loads a product where a block of 2 x 2 sums takes two tiles of A and two of B: eight tiles allow no better."""
MOST_PRODUCTS = 1_200_000
"""That are trapped unasked: ten microseconds each, and as many for the loads."""


def counted(pair: "Pair", row: "BenchRow", asked: bool) -> Mapping[str, float]:
    """Heading -> figure of one call. Raises Uncounted where it makes no sense, or unless `asked` takes minutes."""
    from kernelpair.call.place import resolve
    from kernelpair.timing.compare import prepared
    from optimized import trapped, use_tier
    from properties.suite import SUITE, candidate

    tier = next(known for known in SUITE.tiers() if known.products == "tile_registers")
    if tier.runnable:
        raise Uncounted(f"this CPU runs the tile instructions of {tier} itself: they are counted where they are trapped")
    if not tier.run_as:
        raise Uncounted(f"{tier} cannot be tried here: {tier.reason}")
    least = (row.blocked or row.flops) / PRODUCT_OPERATIONS
    if not least:
        raise Uncounted("bound by memory: it declares no operations")
    if least > MOST_PRODUCTS and not asked:
        raise Uncounted(f"{least:,.0f} products and more take a minute or several to trap: name it with --row")
    trapped.trap_tiles()
    with use_tier(tier.name):
        call = prepared(pair, row, resolve(row.arguments()), candidate(pair, tier.name))
        trapped.reset()
        call()
        counts = trapped.totals()
    if not counts["products"]:
        raise Uncounted("it executes no tile product")
    return figures(counts, least)


def figures(counts: Mapping[str, int], least: float) -> dict[str, float]:
    """Counts, how they compare, and the cycles of one core that executes all of them."""
    products, loads, stores = (counts[name] for name in ("products", "loads", "stores"))
    in_memory = LOAD_CYCLES * loads + STORE_CYCLES * stores
    return {
        "products": products,
        "least": least,
        "least / products": least / products,
        "loads": loads,
        "loads a product": loads / products,
        "least loads": BLOCK_LOADS * least,
        "stores": stores,
        "configurations": counts["configurations"],
        "Mcycles products": PRODUCT_CYCLES * products / 1e6,
        "Mcycles memory": in_memory / 1e6,
    }
