"""What is expected of the cases of one pair, for all of its candidates: of one seed they are given the same cases."""

from torch import Tensor

from kernelpair.contract.pair import Bound, Outputs, Pair, Truth
from kernelpair.trial.purity import checked, tensors

MOST_BYTES = 128 << 20  # that are kept: fifty cases of the gated delta rule in chunks take about as much, of attention a tenth


class Truths:
    """Keeps truth and bound of each case until another pair, or another way to judge it, is asked about.

    What does not fit any more is not kept: the next candidate meets the cases in the same order, and would find none of them if
    each took the place of an earlier one.
    """

    def __init__(self) -> None:
        self._of: tuple[Pair, Truth] | None = None
        self._kept: dict[str, tuple[Outputs, Bound, list[tuple[Tensor, int]]]] = {}
        self._bytes = 0

    def find(self, pair: Pair, way: Truth, line: str) -> tuple[Outputs, Bound] | None:
        """What was kept of the case with this line. None where a tensor of it has been changed since, and wherever the judging
        code itself is to be seen at work (`purity`)."""
        if not self._is_of(pair, way) or line not in self._kept or checked():
            return None
        truth, bound, versions = self._kept[line]
        return (truth, bound) if all(tensor._version == count for tensor, count in versions) else None

    def keep(self, pair: Pair, way: Truth, line: str, truth: Outputs, bound: Bound) -> None:
        """Keep it, if there is room for it."""
        if not self._is_of(pair, way):
            self._of, self._kept, self._bytes = (pair, way), {}, 0
        each = [tensor for part in (truth, bound) for _, tensor in tensors("", part)]
        size = sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in each}.values())
        if self._bytes + size <= MOST_BYTES and not any(tensor.is_inference() for tensor in each):  # those have no version
            self._kept[line] = truth, bound, [(tensor, tensor._version) for tensor in each]
            self._bytes += size

    def _is_of(self, pair: Pair, way: Truth) -> bool:
        return self._of is not None and self._of[0] is pair and self._of[1] == way
