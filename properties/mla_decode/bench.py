"""Absorbed MLA decode steps of realistic size, against torch's attention over the same latent rows gathered in advance."""

from collections.abc import Callable

import torch
from torch import Tensor

from kernelpair.contract.pair import Bench, BenchRow, Floor, Inputs
from optimized.mla_decode import mla_decode_workspace_size
from properties.mla_decode.cases import MlaDecodeCase


def _torch_attention(given: Inputs) -> Callable[[], object]:
    """Two products and a softmax on latent rows gathered in advance, [B, L, 576], of which the values are a part;
    scaled_dot_product_attention takes values narrower than keys a hundred times more slowly."""
    page, lengths = given["kv_cache"].shape[1], given["seq_lens"]
    slots = (given["page_table"].long()[:, :, None] * page + torch.arange(page)).flatten(1)[:, : int(lengths[0])]
    keys = given["kv_cache"].flatten(0, 1)[slots]
    q = torch.cat((given["q_nope"], given["q_pe"]), dim=-1)
    return lambda: latent_attention(q, keys, 512, given["sm_scale"])


def latent_attention(q: Tensor, keys: Tensor, width_v: int, scale: float) -> Tensor:
    """q [B, H, D], keys [B, L, D] with the values in their first columns -> [B, H, width_v]."""
    weights = torch.softmax(torch.bmm(q, keys.mT).float() * scale, dim=-1).to(q.dtype)
    return torch.bmm(weights, keys[..., :width_v])


def _row(heads: int, scattered: bool) -> BenchRow:
    batch, length, page = 4, 2048, 64

    def arguments() -> Inputs:
        seeded = torch.Generator().manual_seed(7)

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=seeded).to(torch.bfloat16)

        pages = batch * length // page
        order = torch.randperm(pages, generator=seeded) if scattered else torch.arange(pages)
        return {
            "q_nope": normal(batch, heads, 512),
            "q_pe": normal(batch, heads, 64),
            "kv_cache": normal(pages, page, 576),
            "seq_lens": torch.full((batch,), length),
            "page_table": order.view(batch, -1).int(),
            "workspace": torch.empty(mla_decode_workspace_size(length, batch, heads, page), dtype=torch.uint8),
            "sm_scale": 192**-0.5,
        }

    return BenchRow(
        f"{heads} heads, B 4, L 2048" + (", permuted pages" if scattered else ""), arguments,
        flops=2.0 * batch * length * heads * (576 + 512), bytes=2.0 * batch * length * 576,
        peers={"torch": _torch_attention}, floor=Floor(2.5 if heads == 16 else 4.0), counts=True,
    )


BENCH_ROWS = [_row(heads, scattered) for scattered in (False, True) for heads in (16, 128)]


BENCH = Bench(
    rows=BENCH_ROWS,
    case=MlaDecodeCase(
        seed=8, dtype="bfloat16", lens=(300, 128), heads=16, latent=512, rope=64, scattered=True,
        int32=("page_table", "seq_lens"),
    ),
    memory="as decode_attention; sums of splits go to workspace, which the caller gives (mla_decode_workspace_size)",
)
