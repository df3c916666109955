"""What the adapters of zentorch share."""

from collections.abc import Mapping
from typing import Any

import torch

OPS = torch.ops.zentorch
FLOATS = ("float32", "bfloat16")
Given = Mapping[str, Any]
