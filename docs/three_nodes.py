"""A campaign over every pair on three nodes of this machine, one of which is killed in the middle; needs Ray.

    python docs/three_nodes.py [options of `kernelpair campaign`]

The nodes have labels as three machines might: two with all that this CPU has up to AVX512, one with AVX2. Says what became of it.
"""

import os
import sys
import threading
import time
from pathlib import Path

from kernelpair.cli import main
from kernelpair.cli.campaign import LABEL

OLD = ("python", "scalar", "avx2")
NEW = (*OLD, "avx512")
CASES, BLOCK, SEED = 40, 20, 1  # of each trial
BEFORE_IT_DIES = 12  # blocks that have ended
os.environ.setdefault("RAY_worker_niceness", "0")


def _kill(cluster: object, node: object, folder: Path, done: threading.Event) -> None:
    """Once some blocks have ended, without a word to anybody."""
    while not done.wait(0.2):
        ended = len(list(folder.glob("*.json")))
        if ended >= BEFORE_IT_DIES:
            print(f"killing the third node after {ended} blocks", flush=True)
            cluster.remove_node(node, allow_graceful=False)  # type: ignore[attr-defined]
            return


def campaign(options: list[str]) -> int:
    """Run it; the exit status is that of the command."""
    from ray.cluster_utils import Cluster

    from properties import pairs
    from properties.suite import SUITE

    trials = sum(len(SUITE.candidates(pair)) for pair in pairs().values())
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    *_, third = (cluster.add_node(num_cpus=1, labels={f"{LABEL}{name}": "yes" for name in names}) for names in (NEW, OLD, NEW))
    cluster.wait_for_nodes()
    done, blocks = threading.Event(), Path("night", "blocks")
    killer = threading.Thread(target=_kill, args=(cluster, third, blocks, done))
    killer.start()
    started = time.monotonic()
    try:
        size = ("--cases", str(trials * CASES), "--block", str(BLOCK), "--seed", str(SEED))
        return main(["campaign", *size, "--folder", "night", "--address", cluster.address, *options])
    finally:
        done.set()
        killer.join()
        files = list(blocks.glob("*.json"))
        print(f"{len(files)} blocks of {len({file.stem.rpartition('-')[0] for file in files})} trials on disk, each once")
        print(f"{time.monotonic() - started:.0f} s", flush=True)
        cluster.shutdown()


if __name__ == "__main__":
    sys.exit(campaign(sys.argv[1:]))
