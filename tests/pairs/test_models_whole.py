"""A whole model over our backends comes near to the library's logits: reported for each case, asserted for one of each family."""

import re

import pytest

from properties.scenarios.models.cases import FAMILIES, ModelCase
from properties.scenarios.models.sides import remark

LARGEST = 1e-5  # twice what 98 runs of up to 56 tokens in a request came to at most, qwen3_next's; deepseek_v3's to 5.5e-7


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_model_agrees_in_float32(family: str, paged: bool) -> None:
    images = (4, 0, 7) if family == "mllama" else ()
    case = ModelCase(family=family, prompts=(5, 9, 3), decodes=8, chunk=4, paged=paged, page=4, images=images)  # type: ignore[arg-type]
    said = re.search(r"logits differ by (\S+) of the largest, (\S+)% of greedy tokens agree", remark(case))
    assert said is not None
    assert float(said[1]) <= LARGEST and float(said[2]) == 100.0, said[0]
