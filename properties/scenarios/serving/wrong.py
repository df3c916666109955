"""Wrong calls of a step `bad`: with which error each must be answered, and where it can be made."""

from collections.abc import Sequence
from typing import NamedTuple


class Wrong(NamedTuple):
    """One wrong call."""

    error: str
    """Class of the error."""
    names: str
    """The argument that its message names."""
    needs: tuple[str, ...] = ()
    """What must be so (`Planner.offers`); without it the call is right, or there is nothing to call."""


ROW, RECURRENT, CROSS, PAGED = ("row",), ("recurrent",), ("cross",), ("paged", "drafts", "static")
WRONG = (  # by their numbers in saved cases: new ones come last
    Wrong("ValueError", "v"),
    Wrong("ValueError", "q"),
    Wrong("ValueError", "out_cache_loc"),
    Wrong("IndexError", "out_cache_loc"),
    Wrong("ValueError", "row"),
    Wrong("ValueError", "length"),
    Wrong("IndexError", "seq_lens"),
    Wrong("ValueError", "mode"),
    Wrong("ValueError", "padded_size"),
    Wrong("IndexError", "req_to_token"),
    Wrong("ValueError", "shared_tokens", ROW),
    Wrong("ValueError", "shared_tokens", ROW),
    Wrong("ValueError", "start"),
    Wrong("ValueError", "length"),
    # Slots of encoder tokens: outside, negative, one twice; other rows than slots; a layer without the encoder's lengths.
    Wrong("IndexError", "encoder_out_cache_loc"),
    Wrong("IndexError", "encoder_out_cache_loc"),
    Wrong("ValueError", "encoder_out_cache_loc"),
    Wrong("ValueError", "k", CROSS),
    Wrong("ValueError", "encoder_lens", ("cross", "slots")),
    # Slots of tokens: none for keys that are given, one too many.
    Wrong("ValueError", "out_cache_loc"),
    Wrong("ValueError", "out_cache_loc"),
    # Slots of states: one twice, one outside, none, of another dtype; more rows than tokens, and fewer.
    Wrong("ValueError", "state_indices", RECURRENT),
    Wrong("IndexError", "state_indices", RECURRENT),
    Wrong("ValueError", "state_indices", RECURRENT),
    Wrong("TypeError", "state_indices", RECURRENT),
    Wrong("ValueError", "mixed_qkv", RECURRENT),
    Wrong("ValueError", "b", RECURRENT),
    # Index tensors of other dtypes.
    Wrong("TypeError", "seq_lens"),
    Wrong("TypeError", "req_pool_indices"),
    Wrong("TypeError", "out_cache_loc"),
    Wrong("TypeError", "encoder_out_cache_loc"),
    # Activations: another dtype of q and of k, another width, a q that is not dense, values alone.
    Wrong("TypeError", "q"),
    Wrong("TypeError", "k"),
    Wrong("ValueError", "k"),
    Wrong("ValueError", "q"),
    Wrong("ValueError", "k"),
    # Batches: a row outside, a negative length, more new tokens than all, none said, an extend that is replayed, a replay that is
    # too small, a negative step.
    Wrong("IndexError", "req_pool_indices"),
    Wrong("ValueError", "seq_lens"),
    Wrong("ValueError", "extend_seq_lens"),
    Wrong("ValueError", "extend_seq_lens"),
    Wrong("ValueError", "padded_size"),
    Wrong("ValueError", "padded_size"),
    Wrong("ValueError", "speculative_step_id"),
    # Replays that the static buffers do not hold: a step of a draft, its length, the length of a request.
    Wrong("ValueError", "speculative_step_id", PAGED),
    Wrong("ValueError", "num_draft_tokens", PAGED),
    Wrong("IndexError", "seq_lens", ("static",)),
    # Prefills: q of other heads, keys alone, a location too many, none, values of another width.
    Wrong("ValueError", "q"),
    Wrong("ValueError", "v"),
    Wrong("ValueError", "out_cache_loc"),
    Wrong("ValueError", "out_cache_loc"),
    Wrong("ValueError", "v"),
    # Prefills on a backend that has none.
    Wrong("ValueError", "mode", ("mla",)),
    Wrong("ValueError", "forward_extend", ("mla",)),
    # Arrivals: tokens of nobody shared, encoders of a negative length, too long, and beyond the free pages; tokens of a request
    # that is unknown, and of one by a request that has an encoder.
    Wrong("ValueError", "shared_tokens", ROW),
    Wrong("ValueError", "encoder_len", ROW),
    Wrong("ValueError", "encoder_len", ROW),
    Wrong("PoolExhausted", "pages", ROW),
    Wrong("ValueError", "row", ROW),
    Wrong("ValueError", "shared_tokens", ("row", "page")),
    # Room: of an unknown request, a negative one, too much of it for the second of two; a negative number of locations; to be
    # given back by an unknown request, and its encoder's.
    Wrong("ValueError", "row"),
    Wrong("ValueError", "length"),
    Wrong("ValueError", "length"),
    Wrong("ValueError", "start"),
    Wrong("ValueError", "row"),
    Wrong("ValueError", "row"),
    # A location of two dimensions; a backend that was never prepared.
    Wrong("ValueError", "out_cache_loc"),
    Wrong("ValueError", "batch"),
)


def refused(which: int, classes: Sequence[str], message: str) -> bool:
    """Whether the answer is an error of the right class that names what is wrong."""
    return WRONG[which].error in classes and names(which, message)


def names(which: int, message: str) -> bool:
    """Whether a message names the argument that is wrong."""
    return WRONG[which].names in message.replace(",", " ").replace(":", " ").replace("[", " ").split()
