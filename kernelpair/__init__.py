"""The engine that puts an optimized CPU kernel on trial against its pure-PyTorch reference. It knows no kernel by name."""

import os

# A waiting OpenMP thread that spins takes the core from the process at the other end of the pipe: a 1 MiB call took 6.6 ms
# instead of 1.4. It is read when torch loads, so it is set here, before any module of the engine imports torch.
_chosen_here = "OMP_WAIT_POLICY" not in os.environ
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def wait_as_usual() -> None:
    """For timing, before torch loads: threads wait as those of torch's users do. Waking a sleeping one takes 50 us."""
    if _chosen_here:
        os.environ.pop("OMP_WAIT_POLICY", None)


__version__ = "0.1.0"
