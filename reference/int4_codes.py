"""int4_from_gptq and int4_from_awq: codes of four bits and their zero points out of words of eight, as published weights hold
them. No scales, and no order of columns (g_idx): callers permute."""

import torch
from torch import Tensor

from reference import checks

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # nibble -> column of its word


def int4_from_gptq(qweight: Tensor, qzeros: Tensor, zero_offset: int = 1) -> tuple[Tensor, Tensor]:
    """codes [N, K] and zeros [N, G], both uint8. Nibble i, bits 4i up, of row r of a column is k = 8r + i; of zero points it is
    the output 8c + i of column c, stored less `zero_offset`.

    qweight int32 [K / 8, N]; qzeros int32 [G, N / 8]. Raises TypeError (dtypes), ValueError (shapes, N % 8, zero_offset).
    """
    _check(qweight, qzeros, qweight.shape[1] if isinstance(qweight, Tensor) and qweight.dim() == 2 else 0)
    checks.is_integer("zero_offset", zero_offset)
    if zero_offset not in (0, 1):
        raise ValueError(f"zero_offset must be 0 or 1, got {zero_offset}")
    codes = _nibbles(qweight).permute(1, 0, 2).reshape(qweight.shape[1], -1)
    zeros = _nibbles(qzeros).reshape(len(qzeros), -1).T + zero_offset
    return codes.to(torch.uint8).contiguous(), zeros.to(torch.uint8).contiguous()


def int4_from_awq(qweight: Tensor, qzeros: Tensor) -> tuple[Tensor, Tensor]:
    """The same. Nibble i of column c is the output 8c + AWQ_ORDER[i], of codes and of zero points, which are stored as they are.

    qweight int32 [K, N / 8]; qzeros int32 [G, N / 8]. Raises TypeError (dtypes), ValueError (shapes).
    """
    _check(qweight, qzeros, 8 * qweight.shape[1] if isinstance(qweight, Tensor) and qweight.dim() == 2 else 0)
    place = [AWQ_ORDER.index(n) for n in range(8)]
    codes, zeros = (_nibbles(words)[..., place].reshape(len(words), -1).T for words in (qweight, qzeros))
    return codes.to(torch.uint8).contiguous(), zeros.to(torch.uint8).contiguous()


def _nibbles(words: Tensor) -> Tensor:
    """[..., 8]: the four bits from 4i on of each word, whose sign is a bit as any other."""
    return words.to(torch.int64)[..., None] >> torch.arange(0, 32, 4) & 15


def _check(qweight: Tensor, qzeros: Tensor, N: int) -> None:
    for name, words in (("qweight", qweight), ("qzeros", qzeros)):
        checks.is_tensor(name, words, 2)
        checks.has_dtype(name, words, (torch.int32,))
        if not words.numel():
            raise ValueError(f"{name} must not be empty, got shape {list(words.shape)}")
    if N % 8:
        raise ValueError(f"qweight must have a multiple of 8 outputs, got N = {N}")
    checks.has_shape("qzeros", qzeros, [len(qzeros), N // 8])
