"""The batch of a case in text: each argument's shape, dtype and layout, and what the pair draws of its own."""

import torch
from torch import Tensor

from kernelpair.call.memory import Arena, Placed
from kernelpair.call.place import place, settle
from kernelpair.contract.case import Case
from kernelpair.contract.pair import Pair

SHOWN = 12  # entries of a tensor


def picture(pair: Pair, case: Case) -> str:
    """Several lines: the case, its arguments as they lie in memory, and the pair's own drawing."""
    lines = [pair.line(case)]
    settled = settle(pair, case, pair.cases.inputs(case))
    placement = place(pair, case, settled, Arena.create())
    for name, value in placement.arguments.items():
        if isinstance(value, Placed):
            lines.append(_argument(case, name, value, placement.logical[name]))
        else:
            lines.append(f"  {name} = {value!r}")
    if pair.cases.picture is not None:
        lines.append(pair.cases.picture(case))
    return "\n".join(lines)


def _argument(case: Case, name: str, placed: Placed, value: Tensor) -> str:
    dtype = str(placed.dtype).removeprefix("torch.")
    layout = case.layout.get(name, "dense")
    text = f"  {name} {dtype}{list(placed.sizes)} strides {list(placed.strides)} {layout}"
    if value.dtype in (torch.int32, torch.int64, torch.bool) and value.dim() <= 2:
        entries = value.flatten()[:SHOWN].tolist()
        text += f" = {entries}{' …' if value.numel() > SHOWN else ''}"
    elif 0 < value.numel() <= SHOWN:  # as few as to work the result out by hand
        text += f" = [{', '.join(f'{number:.6g}' for number in value.double().flatten().tolist())}]"
    return text
