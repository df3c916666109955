"""Cases of the serving trial: a few layers, how they are served, and the steps of a server's life as data."""

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from kernelpair.call.values import uniform
from kernelpair.contract.case import Case, at_least
from reference.causal_conv1d import causal_conv1d_pack_weight
from serving import AttentionLayer, GdnLayer, PackedConvWeight

ROWS = 4  # of the request table: fewer than requests arrive, so that rows are used again
COLUMNS = 64  # of the request table, as SLOTS and LONGEST of a life that is not stretched
LONGEST = 40  # decoder tokens of a request
SLOTS = 64  # of a pool: two long requests do not fit, so that it runs out
CHUNK = 8  # of chunked local attention
STATES = ROWS  # slots of recurrent state
TABLE = 251  # rows of activations that all requests draw from; a prime
LONG_TABLE = 4093  # of a stretched life; a prime, too
Step = tuple[str, int, int, int]
"""What happens, and three numbers: which requests (by their order of arrival among those that it can happen to, as bits or modulo
their number) and how much. A step that cannot happen is left out, so that any list of steps is a trial.

    arrive  tokens, encoder tokens, whose prefix is shared (0: nobody's); a stretched life multiplies tokens, here and in chunks
    extend  chunk of the oldest unfinished prefill, chunk of the next one, bits of the requests that decode beside them
    decode  bits of the requests, padded requests, whether the step is not replayed where others are
    verify  bits of the requests, code of how many tokens are accepted of each one's draft, padded requests and twice what comes
            between two steps of the draft
    finish  request, -, -
    capture size of the buffers that are captured anew, -, -
    bad     which wrong call, request, how many more of them, by their numbers
"""

# Fields of AttentionLayer, or `gdn`; `sinks`: it has some; `draft`: it belongs to the draft model; `reads`: the layer whose keys
# it attends, having none of its own.
SPECS: dict[str, tuple[dict[str, Any], ...]] = {
    "one": ({"heads": 1, "kv_heads": 1, "head_dim": 8, "v_head_dim": 8},),
    "mixed": (
        {"heads": 2, "kv_heads": 1, "head_dim": 16, "v_head_dim": 16},
        {"heads": 4, "kv_heads": 2, "head_dim": 8, "v_head_dim": 12, "sliding_window": 2, "logit_cap": 5.0, "sinks": True},
        {"heads": 1, "kv_heads": 1, "head_dim": 32, "v_head_dim": 8, "sliding_window": 0},
    ),
    "encoder": (
        {"heads": 2, "kv_heads": 1, "head_dim": 8, "v_head_dim": 8},
        {"heads": 2, "kv_heads": 2, "head_dim": 16, "v_head_dim": 8, "is_cross": True},
    ),
    "local": (
        {"heads": 2, "kv_heads": 1, "head_dim": 8, "v_head_dim": 8, "local": True},
        {"heads": 1, "kv_heads": 1, "head_dim": 16, "v_head_dim": 16},
    ),
    "float8": (
        {"heads": 2, "kv_heads": 2, "head_dim": 16, "v_head_dim": 16, "k_scale": 7 / 512, "v_scale": 11 / 16},
        {"heads": 2, "kv_heads": 1, "head_dim": 16, "v_head_dim": 8, "local": True, "k_scale": 5 / 256, "v_scale": 5 / 16},
        {"heads": 1, "kv_heads": 1, "head_dim": 8, "v_head_dim": 8, "sliding_window": 3},
    ),
    "latent": (
        {"heads": 3, "kv_heads": 1, "head_dim": 24, "v_head_dim": 16, "latent": True},
        {"heads": 5, "kv_heads": 1, "head_dim": 40, "v_head_dim": 32, "latent": True},
    ),
    "hybrid": ({"heads": 2, "kv_heads": 1, "head_dim": 16, "v_head_dim": 16}, {"gdn": True}),
    "sharing": (
        {"heads": 2, "kv_heads": 1, "head_dim": 16, "v_head_dim": 16},
        {"heads": 4, "kv_heads": 1, "head_dim": 16, "v_head_dim": 16, "sliding_window": 4, "reads": 0},
    ),
    "draft": (
        {"heads": 2, "kv_heads": 1, "head_dim": 16, "v_head_dim": 16},
        {"heads": 1, "kv_heads": 1, "head_dim": 8, "v_head_dim": 8, "draft": True},
    ),
}
PAGED_ONLY = ("local", "float8")
GDN = {"num_k_heads": 2, "head_k_dim": 16, "num_v_heads": 4, "head_v_dim": 8}
GDN_DIM = 2 * 2 * 16 + 4 * 8
GDN_WIDTH = 4
INDICES = (  # tensors of a batch
    "seq_lens", "req_pool_indices", "out_cache_loc", "extend_seq_lens", "encoder_lens", "encoder_out_cache_loc", "state_indices"
)  # fmt: skip
E5M2_RANGE = 128  # its largest number is so many times that of e4m3fn
SCALES = (1.0, 0.5, 2.0)  # of a layer, beside what follows from its width: a default would do for the first
UNSCALED = ({"k_scale": None, "v_scale": None}, {"k_scale": None})  # what float8 layers lack, in half of their lives
UNSCALED_KEYS = {"float8_e4m3fn": 600.0, "float8_e5m2": 6e4}  # of which some pass the largest number


@dataclass(frozen=True, kw_only=True)
class ServingCase(Case):
    """Layers, a backend, and steps. The request table and the pools are the arguments that lie in guarded memory."""

    stack: Literal["one", "mixed", "encoder", "local", "float8", "latent", "hybrid", "sharing", "draft"] = "one"
    paged: bool = False
    """Pages and their metadata; else slots."""
    latent_pages: Literal["decodes", "all"] = "decodes"
    """Which steps of paged latent layers run over pages: decodes, by the mla backend, beside prefills over slots; or all of them,
    by the paged one."""
    page: int = 1
    replayed: bool = False
    """Decodes, drafts and verifications go through static buffers."""
    recorded: bool = False
    """Replayed decodes run a graph that was recorded when their size first came."""
    drafts: int = 2
    """Tokens of a draft."""
    tentative: bool = False
    """Over slots, drafts are verified without storing their keys; accepted tokens run again."""
    more: Literal["", "cap", "sinks", "window", "all"] = ""
    """What attention layers have besides, as far as their backends serve it."""
    float8: Literal["float8_e4m3fn", "float8_e5m2"] = "float8_e4m3fn"
    state: Literal["float32", "bfloat16"] = "float32"
    conv_layout: Literal["SD", "DS"] = "SD"
    state_layout: Literal["vk", "kv"] = "vk"
    spread: float = 1.0
    """Standard deviation of the scores."""
    size: float = 1.0
    """Of queries and values."""
    provoked: bool = False
    """Between the preparation of a batch and its layers, and behind each replay of a recorded graph, backends are given what they
    must refuse."""
    narrow: int = 1
    """Which of INDICES are int32, as bits; the others are int64."""
    stretch: Annotated[int, at_least(1)] = 1
    """How many times as many tokens prompts, chunks of a prefill, encoders, the table's rows and the pools have. Decodes split
    their keys, and scratch has a size, where requests have some hundreds of them."""
    steps: tuple[Step, ...] = field(default=(("arrive", 1, 0, 0), ("extend", 1, 0, 0)))


def longest(case: ServingCase) -> int:
    """Decoder tokens that a request may have."""
    return LONGEST * case.stretch


def columns_of(case: ServingCase) -> int:
    return COLUMNS * case.stretch


def slots_of(case: ServingCase) -> int:
    return SLOTS * case.stretch


def index_dtype(case: ServingCase, name: str) -> torch.dtype:
    return torch.int32 if case.narrow >> INDICES.index(name) & 1 else torch.int64


def page_of(case: ServingCase) -> int:
    """Slots of a page; a slot backend has pages of one, the mla backend's kernel takes none below 16."""
    if not case.paged:
        return 1
    return max(case.page, 16) if has_mla_backend(case) else case.page


def bare(case: ServingCase) -> bool:
    """Whether backends are told no sizes of static buffers: nothing can be replayed then."""
    return not case.replayed and case.seed % 4 > 0


def max_bs(case: ServingCase) -> int:
    """Requests of the largest replay."""
    return 0 if bare(case) else ROWS + 2


def specs(case: ServingCase) -> tuple[dict[str, Any], ...]:
    return SPECS[case.stack]


def source(case: ServingCase, number: int) -> int:
    """The layer whose pool a layer attends."""
    return int(specs(case)[number].get("reads", number))


def prefills_slots(case: ServingCase) -> bool:
    """Whether prefills and verifications run over slots."""
    return not case.paged or has_mla_backend(case)


def has_mla_backend(case: ServingCase) -> bool:
    """Whether decodes run on the backend that can do nothing else."""
    return case.paged and case.stack == "latent" and case.latent_pages == "decodes"


def is_gdn(spec: dict[str, Any]) -> bool:
    return bool(spec.get("gdn"))


# --- layers, parameters and activations ---


def unscaled(case: ServingCase) -> bool:
    """Whether keys are kept as float8 as they are: of the first layer values, too."""
    return case.stack == "float8" and case.seed % 2 == 1


def _sm_scale(case: ServingCase, number: int, spec: dict[str, Any]) -> float:
    scale: float = spec["head_dim"] ** -0.5 * SCALES[(case.seed + number) % len(SCALES)]
    return scale * _key_size(case) / UNSCALED_KEYS[case.float8] if unscaled(case) and "k_scale" in spec else scale


def _key_size(case: ServingCase) -> float:
    """For which scores of the usual scale have the spread that they are to have."""
    return 3 * case.spread / case.size


def layers_of(case: ServingCase, wide: bool) -> list[AttentionLayer | GdnLayer]:
    """The layers; `wide`: parameters in float64, for the truth."""
    found: list[AttentionLayer | GdnLayer] = []
    for number, spec in enumerate(specs(case)):
        if is_gdn(spec):
            found.append(_gdn_layer(case, number, wide))
            continue
        fields = {name: value for name, value in spec.items() if name not in ("sinks", "draft", "reads")}
        if "k_scale" in spec and case.float8 == "float8_e5m2":  # some keys pass its largest number, of the usual size already
            fields |= {name: spec[name] / (3 * E5M2_RANGE) for name in ("k_scale", "v_scale")}
        if "k_scale" in spec and unscaled(case):
            fields |= UNSCALED[number]
        fields |= _more(case, spec)
        if spec.get("sinks") or (case.more in ("sinks", "all") and not has_mla_backend(case)):
            sinks = uniform(case.seed, "sinks", (spec["heads"],), scale=4.0)
            fields["sinks"] = sinks.double() if wide else sinks
        found.append(AttentionLayer(layer_id=number, sm_scale=_sm_scale(case, number, spec), **fields))
    return found


def _more(case: ServingCase, spec: dict[str, Any]) -> dict[str, Any]:
    """The cap and the window that a layer has besides its own. The mla backend serves neither; an encoder allows no window."""
    if has_mla_backend(case):
        return {}
    no_window = spec.get("local") or any(each.get("is_cross") for each in specs(case))
    both = case.more == "all"
    cap = {"logit_cap": case.spread} if (both or case.more == "cap") and "logit_cap" not in spec else {}
    free = (both or case.more == "window") and not no_window and "sliding_window" not in spec
    return cap | ({"sliding_window": 5} if free else {})


def _gdn_layer(case: ServingCase, number: int, wide: bool) -> GdnLayer:
    dtype: torch.dtype = getattr(torch, case.dtype)
    packed = causal_conv1d_pack_weight(uniform(case.seed, "weight", (GDN_DIM, GDN_WIDTH), dtype, 1 / GDN_WIDTH))
    l2norm = case.seed // 2 % 3 > 0
    spread = 1 / GDN_WIDTH if l2norm else 0.2 * GDN["head_k_dim"] ** -0.5  # |k| stays below 1
    bias = uniform(case.seed, "conv_bias", (GDN_DIM,), dtype, spread) if case.seed % 2 else None
    vectors = [uniform(case.seed, name, (GDN["num_v_heads"],), scale=scale) for name, scale in (("A_log", 2.0), ("dt_bias", 1.0))]
    if wide:
        packed, vectors = packed.double(), [vector.double() for vector in vectors]
        bias = None if bias is None else bias.double()
    weight = PackedConvWeight(packed, "pairs-n32", GDN_DIM, GDN_WIDTH)
    sizes: dict[str, Any] = GDN
    return GdnLayer(
        number, **sizes, conv_weight=weight, conv_bias=bias, A_log=vectors[0], dt_bias=vectors[1], use_qk_l2norm=l2norm,
        eps=(1e-5, 1e-2)[case.seed // 6 % 2],
    )  # fmt: skip


@lru_cache(maxsize=4)
def _activations(
    stack: str, seed: int, dtype_name: str, key_size: float, unscaled_keys: float, size: float, rows: int
) -> list[tuple[Tensor, Tensor, Tensor]]:
    dtype: torch.dtype = getattr(torch, dtype_name)
    found = []
    for number, spec in enumerate(SPECS[stack]):
        if is_gdn(spec):
            mixed = uniform(seed, f"mixed{number}", (rows, GDN_DIM))
            keys = 2 * GDN["num_k_heads"] * GDN["head_k_dim"]
            mixed[:, :keys] *= 0.7 * GDN["head_k_dim"] ** -0.5  # |k| stays below 1
            mixed[:, keys:] *= size
            a, b = (uniform(seed, f"{name}{number}", (rows, GDN["num_v_heads"]), dtype, 3.0) for name in "ab")
            found.append((mixed.to(dtype), a, b))
            continue
        H, Hkv, D, Dv = (spec[name] for name in ("heads", "kv_heads", "head_dim", "v_head_dim"))
        q = uniform(seed, f"q{number}", (rows, H, D), dtype, size)
        if "reads" in spec:
            found.append((q, *found[spec["reads"]][1:]))
            continue
        k = uniform(seed, f"k{number}", (rows, Hkv, D), scale=unscaled_keys if "k_scale" in spec else key_size).to(dtype)
        v = k[..., :Dv] if spec.get("latent") else uniform(seed, f"v{number}", (rows, Hkv, Dv), dtype, size)
        found.append((q, k, v))
    return found


def activations(case: ServingCase) -> list[tuple[Tensor, Tensor, Tensor]]:
    """For each layer q, k, v (mixed_qkv, a, b of a recurrent one): rows that all tokens of all requests pick from."""
    keys = _key_size(case)
    unscaled_keys = UNSCALED_KEYS[case.float8] if unscaled(case) else keys
    return _activations(case.stack, case.seed, case.dtype, keys, unscaled_keys, case.size, _rows(case))


def _rows(case: ServingCase) -> int:
    return TABLE if case.stretch == 1 else LONG_TABLE


def token_row(case: ServingCase, request: int, position: int, attempt: int = 0) -> int:
    """Which row is that token's; no two tokens of a request have the same, nor the attempts at one position."""
    return (97 * request + position + 41 * attempt) % _rows(case)


def encoder_row(case: ServingCase, request: int, position: int) -> int:
    return (97 * request + position + 131) % _rows(case)
