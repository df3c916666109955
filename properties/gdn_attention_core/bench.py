"""gdn_attention_core: what is timed."""

from kernelpair.contract.pair import BenchRow, Inputs
from properties.gdn_attention_core.cases import GdnCase, inputs

# --- bench ---


def _bench_inputs(decodes: int, prefills: tuple[int, ...]) -> Inputs:
    case = GdnCase(
        dtype="bfloat16", decodes=decodes, prefills=prefills, key_heads=16, group=2, K=128, V=128,
        cold=tuple(range(len(prefills))), poison="outlier",
    )  # fmt: skip
    return inputs(case)


BENCH = [
    BenchRow("64 decodes, 16/32 heads, 128x128", lambda: _bench_inputs(64, ()), bytes=2.0 * 64 * 32 * 128 * 128 * 4),
    BenchRow("prefill of 1024, 16/32 heads, 128x128", lambda: _bench_inputs(0, (1024,)), flops=6.0 * 1024 * 32 * 128 * 128),
    BenchRow("8 decodes + prefill of 512", lambda: _bench_inputs(8, (512,)), flops=6.0 * 520 * 32 * 128 * 128),
]
