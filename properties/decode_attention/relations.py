"""What else holds for decode_attention, beyond equality with its reference."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from kernelpair.call.values import permutation
from kernelpair.contract.pair import Alias, Inputs, Relation
from kernelpair.trial.modes import MANY
from kernelpair.trial.session import JudgedCall, Session
from properties.decode_attention.cases import EMULATED_WORK, keys_of, live_of, table_of
from properties.decode_attention.rows import loses_keys
from properties.shared.attention_values import extreme
from properties.shared.many_cores import cuts
from properties.shared.pads import other_dtypes
from properties.shared.renaming import new_names, renamed
from reference.extend_attention import extend_attention

KEYS_IN_SPLITS = 200  # one request on two threads has two splits, several would have four of at least 64 keys
KEYS_IN_SHORT_SPLITS = 120  # its two splits have hardly more than the 64 keys that a split has at least
OTHER_SPLITS = {1: 3, 2: 7, 3: 1, 7: 2, 8: 1, 16: 5}


def _plain(case: Any) -> Any:
    """The case without layouts: for calls whose tensors are built by a relation."""
    return replace(case, layout={})


def _given(case: Any, session: Session) -> Inputs:
    """The inputs of the first call; a shared buffer stays shared."""
    given = session.inputs()
    if case.shared:
        given["v_cache"] = Alias("k_cache", lambda k_cache: k_cache[..., : case.width_v])
    return given


def _batch_argument(name: str) -> bool:
    return name in ("q", "out", "key", "value", "loc", "attn_logits", "req_pool_indices", "seq_lens", "encoder_lens")


def _reading(given: Inputs) -> Inputs:
    """The call without new keys, for caches that hold them; loc stays where it tells the pads."""
    loc = None if given["pad_slot"] is None else given["loc"]
    return given | {"key": None, "value": None, "loc": loc}


def _pads_empty(case: Any, given: Inputs) -> Inputs:
    """The pads as requests without keys, for what knows no pads."""
    empty = {name: given[name].clone() for name in ("seq_lens", "req_pool_indices")}
    if given["encoder_lens"] is not None:
        empty["encoder_lens"] = given["encoder_lens"].clone()
    for entries in empty.values():
        entries[list(case.pads)] = 0
    return given | empty


def _requests(given: Inputs, rows: Tensor) -> Inputs:
    """The call for some of the requests."""
    return {n: v[rows] if _batch_argument(n) and isinstance(v, Tensor) else v for n, v in given.items()}


def _close(
    case: Any, session: Session, got: Tensor, expected: Tensor, says: str, rows: Any = slice(None), of: JudgedCall | None = None
) -> None:
    """Both are within one bound of the truth, that `of` a call or of the first, so within two of each other; equal where the case
    is exact."""
    tolerance = (of or session.first).bound.get("out")
    if not isinstance(tolerance, Tensor):
        session.expect_same("out", got, expected, says)
    else:
        session.expect_close("out", got, expected, 2 * tolerance[rows], says)


def _splits(case: Any, session: Session) -> None:
    given = _given(case, session)
    splits = OTHER_SPLITS.get(case.splits, 2)
    B, H, _, W = given["attn_logits"].shape
    other = session.run(_plain(case), given | {"attn_logits": torch.full((B, H, splits, W), torch.nan)}, judged=False)
    _close(case, session, other.outputs["out"], session.first.outputs["out"], f"{splits} splits, scratch of NaN")


def _extend(case: Any, session: Session) -> None:
    """The reference of extend_attention in float64: each request extends by its last token."""
    given = _pads_empty(case, session.inputs())
    lens, rows = given["seq_lens"].long(), given["req_to_token"].long()
    live = lens > 0
    off = torch.zeros_like(lens) if given["encoder_lens"] is None else given["encoder_lens"].long()
    k_cache, v_cache = (session.first.truth[name].clone() for name in ("k_cache", "v_cache"))
    last = torch.zeros_like(lens)
    last[live] = rows[given["req_pool_indices"].long()[live], (off + lens - 1)[live]]
    out = torch.zeros_like(session.first.truth["out"])
    q = given["q"].double()
    extend_attention(
        q, k_cache[last], v_cache[last], out, k_cache, v_cache, given["req_to_token"], given["req_pool_indices"],
        given["seq_lens"], live.long(), torch.arange(len(lens)), given["encoder_lens"],
        None if given["sinks"] is None else given["sinks"].double(), given["sm_scale"], given["logit_cap"],
        given["sliding_window"],
    )
    tolerance = session.first.bound.get("out")
    if isinstance(tolerance, Tensor):
        session.expect_close("out", session.first.outputs["out"], out, tolerance, "extend_attention of one token")


def _separate_values(case: Any, session: Session) -> None:
    given = session.inputs()
    separate = given | {"v_cache": given["v_cache"].clone()}
    if case.write:
        separate["value"] = given["key"][..., : case.width_v].clone()
    other = session.run(_plain(case), separate, judged=False)
    says = "a separate copy of the values"
    _close(case, session, other.outputs["out"], session.first.outputs["out"], says)
    session.expect_same("v_cache", other.outputs["v_cache"], session.first.outputs["k_cache"][..., : case.width_v], says)


def _written_before(case: Any, session: Session) -> None:
    given = _given(case, session)
    caches = {name: session.first.outputs[name] for name in ("k_cache", "v_cache")}
    if case.shared:
        caches["v_cache"] = given["v_cache"]
    before = _reading(given | caches)
    other = session.run_moved(case, before)
    session.expect_moved("out", other.outputs["out"], session.first.outputs["out"], "a cache that holds the new rows already")


def _window(case: Any, session: Session) -> None:
    """The keys in front of the window have no influence, the first one inside it has: of equal keys each has its share."""
    given = _given(case, session)
    caches = {name: session.first.outputs[name].clone() for name in ("k_cache", "v_cache")}
    known = _pads_empty(case, given)
    rows, pool, lens = (known[name].long() for name in ("req_to_token", "req_pool_indices", "seq_lens"))
    off = torch.zeros_like(lens) if known["encoder_lens"] is None else known["encoder_lens"].long()
    cut = {b: int(off[b] + lens[b]) - case.window for b in range(len(lens)) if 0 < case.window < int(lens[b])}
    plain = _reading(given | caches)
    table = rows.clone()  # the slots in front exist and hold numbers
    for b, first in cut.items():
        table[pool[b], off[b] : first] = int(rows[pool[b], first])
    other = session.run(_plain(case), plain | {"req_to_token": table}, judged=False)
    says = "other keys in front of the window"
    session.expect_same("out", other.outputs["out"], session.run(_plain(case), plain, judged=False).outputs["out"], says)
    level = {name: torch.zeros_like(cache) for name, cache in caches.items()}  # no other value drowns that of the first key
    level["v_cache"][[int(rows[pool[b], first]) for b, first in cut.items()]] = 3e4
    out = session.run(_plain(case), plain | level, judged=False).outputs["out"]
    for b in cut:
        session.expect(bool(out[b].any()), "out", f"the first key in the window of request {b} has an influence")


def _one_by_one(case: Any, session: Session) -> None:
    given = _given(case, session)
    for b in range(len(case.lens)):
        row = torch.tensor([b])
        alone = session.run(_plain(case), _requests(given, row), judged=False)
        _close(case, session, alone.outputs["out"], session.first.outputs["out"][row], f"request {b} alone", row)


def _reordered(case: Any, session: Session) -> None:
    given = _given(case, session)
    order = permutation(case.seed, "order", len(case.lens))
    other = session.run(_plain(case), _requests(given, order), judged=False)
    _close(case, session, other.outputs["out"], session.first.outputs["out"][order], "requests in another order", order)


def _relabelled(case: Any, session: Session) -> None:
    """Slots renamed: the caches permuted, table and loc with them."""
    given = _given(case, session)
    order, names = new_names(case.seed, len(given["k_cache"]))
    moved: Inputs = {name: given[name][order] for name in ("k_cache", "v_cache") if isinstance(given[name], Tensor)}
    moved["req_to_token"] = renamed(given["req_to_token"], names)
    if case.write or case.pads:
        moved["loc"] = renamed(given["loc"], names)
    if case.pad == "zero":
        moved["pad_slot"] = int(names[0])
    other = session.run(_plain(case), given | moved, judged=False)
    _close(case, session, other.outputs["out"], session.first.outputs["out"], "slots renamed")


def _dense(case: Any, session: Session) -> None:
    given = _given(case, session)
    int32 = other_dtypes(case, ("req_to_token", "seq_lens", "loc"), given["pad_slot"])
    other = session.run(replace(case, layout={}, int32=int32), given, judged=False)
    _close(case, session, other.outputs["out"], session.first.outputs["out"], "dense tensors, other index dtypes")


def _in_splits(case: Any, session: Session, splits: int, most: int = KEYS_IN_SPLITS, heads: int = 0) -> Inputs | None:
    """The longest request alone, each of its keys many times, as far as the work of so many heads, or all, allows."""
    live, keys = live_of(case), table_of(case).seen
    b = max(live, key=lambda b: len(keys[b])) if live else 0
    count = min(most, EMULATED_WORK // max(1, (heads or case.heads) * case.width))
    if not live or not len(keys[b]) or not count or loses_keys(case):  # the first keys alone may have no weight at all
        return None
    if extreme(case) == "large" and count > len(keys[b]) and case.dtype != "float16":  # the sum of so many leaves float32
        return None
    sums = torch.zeros(1, case.heads, splits, case.width_v + 1)
    each = keys[b][torch.arange(count) * len(keys[b]) // count]
    return _requests(_given(case, session), torch.tensor([b])) | {
        "attn_logits": sums, "req_to_token": each[None], "req_pool_indices": torch.tensor([0]),
        "seq_lens": torch.tensor([count]), "encoder_lens": None, "sliding_window": 0, "is_cross_attn": False,
    }  # fmt: skip


def _on_many_cores(case: Any, session: Session) -> None:
    """The longest request alone, each of its keys many times, a query head for each kv head, cut as for a server's cores; over
    caches that hold the new rows already, and none but its slots."""
    for heads, keys, threads in cuts(case.seed):
        given = _in_splits(case, session, MANY, keys, heads)
        if given is None:
            return
        of_keys = torch.arange(heads) % case.kv_heads  # the case's own, in turn
        of_queries = of_keys * (case.heads // case.kv_heads)
        slots, columns = given["req_to_token"].unique(return_inverse=True)
        given = _reading(given) | {name: given[name][:, of_queries] for name in ("q", "out", "attn_logits")}
        for name in ("k_cache",) if case.shared else ("k_cache", "v_cache"):
            given[name] = session.first.outputs[name][slots][:, of_keys]
        given |= {"req_to_token": columns, "loc": None, "pad_slot": None}
        given["sinks"] = None if given["sinks"] is None else given["sinks"][of_queries]
        alone = replace(case, layout={}, heads=heads, kv_heads=heads)
        says = f"{heads} heads over {columns.numel()} keys, {threads} threads"
        cut = session.run(alone, given, threads, says)
        whole = session.run(alone, given | {"attn_logits": given["attn_logits"][:, :, :1]}, judged=False)
        _close(case, session, cut.outputs["out"], whole.outputs["out"], f"{says}, and in one split", of=cut)


def _padded(case: Any, session: Session) -> None:
    """Two pads more, in the batch and in front of a request alone in splits, where they might change how it is cut."""
    for splits in (2, 7):
        alone = _in_splits(case, session, splits)
        if alone is not None:
            called, alone = _in_float32(case, session, alone)
            _with_two_pads(called, session, alone, [0], 0)
    _with_two_pads(case, session, _given(case, session), live_of(case), case.seed % (len(case.lens) + 1))


def _in_float32(case: Any, session: Session, given: Inputs) -> tuple[Any, Inputs]:
    """The call in float32, but of somebody else's kernel: 16 bits would show few sums that are cut otherwise."""
    if session.subject.foreign:
        return case, given
    floats = {n: t.float() for n, t in given.items() if isinstance(t, Tensor) and t.is_floating_point()}
    return replace(case, dtype="float32"), given | floats


def _with_two_pads(case: Any, session: Session, given: Inputs, live: list[int], at: int) -> None:
    """As engines fill up a captured batch: the pad slot, table row 0, one token; what a pad brings is never read. They
    stand in front of row `at`, or behind all."""
    batch = len(given["seq_lens"])
    ours = case.write and 0 in given["loc"][live].tolist()  # slot 0 is about to be written, so it cannot be the pad
    named = case.pad not in ("none", "beyond")
    pad = given["pad_slot"] if named else -1 if ours else 0
    loc = given["loc"] if case.pad != "none" or case.write else torch.full((batch,), given["k_cache"].shape[0])
    filled = {"req_pool_indices": 0, "seq_lens": 1, "encoder_lens": 1}
    padded = given | {"pad_slot": pad, "loc": torch.cat([loc, torch.full((2,), pad, dtype=loc.dtype)])}
    padded |= {name: torch.cat([given[name], torch.full((2,), value, dtype=given[name].dtype)])
               for name, value in filled.items() if given[name] is not None}
    padded |= {name: torch.cat([given[name], given[name].new_full((2, *given[name].shape[1:]), torch.nan)])
               for name in ("q", "out", "key", "value", "attn_logits") if given[name] is not None}
    order = torch.tensor([*range(at), batch, batch + 1, *range(at, batch)])
    before = session.run(_plain(case), given, judged=False).outputs
    after = session.run_moved(_plain(case), _requests(padded, order)).outputs
    says = f"two pads of slot {pad} more, from row {at} on"
    session.expect_moved("out", after["out"][order < batch], before["out"], says)
    pads = after["out"][order >= batch]
    session.expect_same("out", pads, torch.zeros_like(pads), f"{says}: their rows")
    for name in ("k_cache", "v_cache"):
        session.expect_same(name, after[name], before[name], says)


def _another_between(case: Any, session: Session) -> None:
    """A request in splits again, after a call with four like it, whose splits are twice as long, or less than that where its own
    are as short as splits get: what a call finds out about lengths must not stay."""
    for keys in (KEYS_IN_SPLITS, KEYS_IN_SHORT_SPLITS):
        given, plain = _in_splits(case, session, 7, keys), _plain(case)
        if given is None:
            return
        if keys == KEYS_IN_SHORT_SPLITS:
            plain, given = _in_float32(plain, session, given)
        before = session.run(plain, given, judged=False).outputs["out"]
        session.run(plain, _requests(_reading(given), torch.zeros(4, dtype=torch.int64)), judged=False)
        after = session.run(plain, given, judged=False).outputs["out"]
        session.expect_same("out", after, before, f"the same call after one of four such requests of {keys} keys")


def _repeated_heads(case: Any, session: Session) -> None:
    given = _given(case, session)
    repeats = case.heads // case.kv_heads
    names = [n for n in ("k_cache", "v_cache", "key", "value") if isinstance(given[n], Tensor)]
    wide = {name: given[name].repeat_interleave(repeats, dim=1) for name in names}
    other = session.run(_plain(case), given | wide, judged=False)
    _close(case, session, other.outputs["out"], session.first.outputs["out"], "a kv head for each query head")


RELATIONS = {
    # A merge of splits rounds once more, so the exact mean of equal scores is one split's alone.
    "splits": Relation(
        _splits, "the number of splits and the scratch's content do not matter", lambda case: case.values != "equal"
    ),
    "extend": Relation(_extend, "equals extend_attention of one token", lambda case: not case.cross and bool(case.lens)),
    "separate": Relation(_separate_values, "a shared buffer acts as a separate copy of v", lambda case: case.shared),
    "written": Relation(_written_before, "writing first equals a cache that is written already", lambda case: case.write),
    "window": Relation(
        _window, "keys in front of the window have no influence, the first inside has",
        lambda case: not case.cross and not case.shared and not case.same_row and case.heads > 0
        and any(0 < case.window < n for n in keys_of(case)),
    ),
    "alone": Relation(_one_by_one, "a batch equals separate calls", lambda case: 1 < len(case.lens) <= 4),
    "order": Relation(_reordered, "permuting requests permutes results", lambda case: len(case.lens) > 1),
    "rename": Relation(_relabelled, "renaming slots changes nothing", lambda case: bool(case.lens)),
    "layout": Relation(_dense, "layout and index dtype do not matter"),
    "pads": Relation(_padded, "padding changes no bit of a live row or of the caches", opens=True),
    "between": Relation(
        _another_between, "another call between two equal ones changes no bit", lambda case: bool(live_of(case)), opens=True
    ),
    "cores": Relation(
        _on_many_cores, "cut as for the cores of a server, the result stays within the bound",
        lambda case: case.values == "random" and not extreme(case) and case.heads > 0  # else a sum may overflow
        and not loses_keys(case) and any(len(keys) > 1 for keys in table_of(case).seen),
        opens=True,
    ),
    "heads": Relation(
        _repeated_heads, "GQA equals MHA over repeated heads",
        lambda case: case.kv_heads < case.heads <= 17 and bool(case.lens),
    ),
}
