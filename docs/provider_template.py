"""My kernels under kernelpair's contracts: copy this file, keep what you need, and run kernelpair check --provider <file>."""

from kernelpair.providers.provider import Unsupported, adapts, fitted

NAME = "mine"  # how reports call it


def missing():
    """Why the kernels cannot run on this machine; empty if they can.

    The command asks it before anything is loaded, and gives up after ten seconds: look whether the library is there
    (`importlib.util.find_spec`), and import it in `prepare`.
    """
    return ""


def prepare():
    """Runs once in the process that makes the calls: load your library here, e.g. torch.ops.load_library("my_kernels.so")."""


@adapts(
    "store_cache",  # a name from `kernelpair list`
    limits={  # what is documented about your kernel -> does this case lie outside (its fields: kernelpair list store_cache)
        "no pads": lambda case: bool(case.pads),
        "float dtypes": lambda case: case.dtype not in ("bfloat16", "float16", "float32"),
    },
    # of a case outside of the limits: one like it within them, which is tried in its place
    fit=lambda case: fitted(case, ["bfloat16", "float16", "float32"], pads=(), pad_in_range=False),
)
def store_cache(k, v, k_cache, v_cache, indices, pad_slot=None):
    """my_store"""  # what `kernelpair list --provider` shows
    if k.shape[0] > 1_000_000:
        raise Unsupported("a million rows at most")  # a limit that only the arguments show
    k_cache[indices.long()] = k
    v_cache[indices.long()] = v
