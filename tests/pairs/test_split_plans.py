"""How a request is cut into splits does not depend on requests without keys beside it: its bits stay what they are."""

from collections.abc import Iterator

import pytest
import torch

import optimized
from optimized.mla_decode import mla_decode, mla_decode_workspace_size
from optimized.paged_attention import paged_attention

TIERS = [tier.name for tier in optimized.tiers() if tier.runnable]
KEYS, PAGE = 1400, 16
PAGES = -(-KEYS // PAGE)
TABLE = torch.arange(PAGES, dtype=torch.int32)[None]


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize("tier", TIERS)
def test_a_row_over_pages(tier: str) -> None:
    torch.manual_seed(1)
    q, k, v = torch.randn(1, 2, 32), torch.randn(PAGES, PAGE, 2, 32), torch.randn(PAGES, PAGE, 2, 32)
    one, two = torch.tensor([0, 1]), torch.tensor([0, 1, 1])
    with optimized.use_tier(tier):
        alone = paged_attention(q, k, v, TABLE, torch.tensor([KEYS]), one)
        padded = paged_attention(q, k, v, TABLE.repeat(2, 1), torch.tensor([KEYS, 0]), two)
    assert torch.equal(alone, padded)


@pytest.mark.parametrize("tier", TIERS)
def test_a_row_over_latents(tier: str) -> None:
    torch.manual_seed(1)
    q, rope, cache = torch.randn(2, 4, 64), torch.randn(2, 4, 16), torch.randn(PAGES, PAGE, 80)
    tables, lengths = TABLE.repeat(2, 1), torch.tensor([KEYS, 0], dtype=torch.int32)
    results = []
    with optimized.use_tier(tier):
        for rows in (1, 2):
            workspace = torch.empty(mla_decode_workspace_size(KEYS, rows, 4, PAGE, 64), dtype=torch.uint8)
            results.append(mla_decode(q[:rows], rope[:rows], cache, lengths[:rows], tables[:rows], workspace, 0.1)[0])
    assert torch.equal(*results)
