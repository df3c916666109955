"""A whole model over our backends comes near to the library's logits: reported for each case, asserted for one of each family."""

import re
from dataclasses import replace

import pytest

from properties.scenarios.models.cases import FAMILIES, VISION_TOKENS, ModelCase
from properties.scenarios.models.sides import remark

PICTURES = ModelCase(family="mllama", prompts=(5, 9, 3), decodes=6, chunk=4, images=(VISION_TOKENS, 0, VISION_TOKENS))
MORE_ROUNDING = 1.5  # than the library's bfloat16: both round in every module, neither always where the other does
LARGEST = 1e-5  # twice what 98 runs of up to 56 tokens in a request came to at most, qwen3_next's; deepseek_v3's to 5.5e-7


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_whole_model_agrees_in_float32(family: str, paged: bool) -> None:
    images = (4, 0, 7) if family == "mllama" else ()
    case = ModelCase(family=family, prompts=(5, 9, 3), decodes=8, chunk=4, paged=paged, page=4, images=images)  # type: ignore[arg-type]
    said = re.search(r"logits differ by (\S+) of the largest, (\S+)% of greedy tokens agree", remark(case))
    assert said is not None
    assert float(said[1]) <= LARGEST and float(said[2]) == 100.0, said[0]


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
def test_a_picture_at_its_real_size_agrees_in_float32(paged: bool) -> None:
    case = replace(PICTURES, paged=paged, page=16)
    said = re.search(r"logits differ by (\S+) of the largest, (\S+)% of greedy tokens agree", remark(case))
    assert said is not None
    assert float(said[1]) <= LARGEST and float(said[2]) == 100.0, said[0]


@pytest.mark.parametrize("paged", [False, True], ids=["slots", "pages"])
def test_a_picture_at_its_real_size_in_bfloat16_is_as_near_to_float32_as_the_librarys(paged: bool) -> None:
    case = replace(PICTURES, paged=paged, page=16, dtype="bfloat16")
    said = re.search(r"(\S+) times as far from float32 as the library", remark(case))
    assert said is not None
    assert float(said[1]) <= MORE_ROUNDING, said[0]
