"""What is expected of the cases of one pair, for all of its candidates: of one seed they are given the same cases."""

from torch import Tensor

from kernelpair.contract.pair import Pair, Truth
from kernelpair.trial.purity import checked, tensors
from kernelpair.trial.truth import Expected

MOST_BYTES = 64 << 20  # that are kept; the cases of a minute take about a tenth of it, those of a model's sizes the most


class Truths:
    """Keeps truth and bound of each case until another pair, or another way to judge it, is asked about.

    What does not fit any more is not kept: the next candidate meets the cases in the same order, and would find none of them if
    each took the place of an earlier one.
    """

    def __init__(self) -> None:
        self._of: tuple[Pair, Truth] | None = None
        self._kept: dict[str, tuple[Expected, list[tuple[Tensor, int]]]] = {}
        self._bytes = 0

    def find(self, pair: Pair, way: Truth, line: str) -> Expected | None:
        """What was kept of the case with this line. None where a tensor of it has been changed since, and wherever the judging
        code itself is to be seen at work (`purity`)."""
        if self._of is None or self._of[0] is not pair or self._of[1] != way or checked():
            return None
        expected, tensors = self._kept.get(line, (None, []))
        return expected if all(tensor._version == count for tensor, count in tensors) else None

    def keep(self, pair: Pair, way: Truth, line: str, expected: Expected) -> None:
        """Keep it, if there is room for it."""
        if self._of is None or self._of[0] is not pair or self._of[1] != way:
            self._of, self._kept, self._bytes = (pair, way), {}, 0
        each = [tensor for part in (expected.truth, expected.inputs, expected.bound) for _, tensor in tensors("", part)]
        size = sum({tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in each}.values())
        if self._bytes + size <= MOST_BYTES and not any(tensor.is_inference() for tensor in each):  # those have no version
            self._kept[line] = expected, [(tensor, tensor._version) for tensor in each]
            self._bytes += size
