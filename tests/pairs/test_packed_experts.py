"""Packed experts as an object, and its Python face, alike in reference and kernel."""

from dataclasses import FrozenInstanceError, replace
from types import ModuleType

import pytest
import torch

import optimized.fused_moe
import reference.fused_moe

BOTH = pytest.mark.parametrize("side", [reference.fused_moe, optimized.fused_moe], ids=["reference", "optimized"])
FLOATS = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
ONE, ID = torch.ones(1, 1), torch.zeros(1, 1, dtype=torch.int64)


@BOTH
@FLOATS
def test_it_is_immutable_and_keeps_every_bit(side: ModuleType, dtype: torch.dtype) -> None:
    weight = torch.randn(3, 34, 7).to(dtype)
    packed = side.PackedExperts.pack(weight)
    assert (packed.E, packed.N, packed.K, packed.dtype) == (3, 34, 7, dtype)
    assert torch.equal(packed.unpack(), weight)
    assert not isinstance(packed, torch.Tensor)
    with pytest.raises(FrozenInstanceError):
        packed.E = 2


@FLOATS
def test_both_sides_pack_alike(dtype: torch.dtype) -> None:
    weight = torch.randn(2, 65, 40).to(dtype).transpose(1, 2)
    ours, theirs = (side.PackedExperts.pack(weight) for side in (optimized.fused_moe, reference.fused_moe))
    assert torch.equal(ours.data, theirs.data) and ours.layout == theirs.layout


@BOTH
@FLOATS
def test_its_tensors_make_it_again(side: ModuleType, dtype: torch.dtype) -> None:
    packed = side.PackedExperts.pack(torch.randn(5, 6, 33).to(dtype))
    again = side.PackedExperts.from_tensors(**packed.tensors())
    assert again.data is packed.data and (again.layout, again.E, again.N, again.K) == (packed.layout, 5, 6, 33)


@BOTH
def test_tensors_of_other_sizes_are_refused(side: ModuleType) -> None:
    packed = side.PackedExperts.pack(torch.randn(2, 64, 32))
    with pytest.raises(ValueError, match=r"data must have shape \[2, 3, 1, 2, 32, 16\] for sizes \[65, 32\]"):
        side.PackedExperts.from_tensors(packed.data, torch.tensor([65, 32]))
    with pytest.raises(ValueError, match="data must have shape"):
        side.PackedExperts.from_tensors(packed.data[0], torch.tensor([64, 32]))
    with pytest.raises(TypeError, match="data must be a tensor of"):
        side.PackedExperts.from_tensors(packed.data.to(torch.int8), torch.tensor([64, 32]))


@BOTH
def test_int8_experts_keep_every_bit(side: ModuleType) -> None:
    weight, scale = torch.randint(-128, 128, (3, 34, 70), dtype=torch.int8), torch.rand(3, 34)
    packed = side.PackedInt8Experts.pack(weight, scale)
    assert (packed.E, packed.N, packed.K, packed.layout) == (3, 34, 70, "vnni4-n32k64")
    assert torch.equal(packed.unpack(), weight) and torch.equal(packed.sums, weight.sum(-1, dtype=torch.int32))
    assert side.PackedInt8Experts.from_tensors(**packed.tensors()) == packed
    with pytest.raises(FrozenInstanceError):
        packed.E = 2


@BOTH
def test_int8_tensors_of_other_sizes_are_refused(side: ModuleType) -> None:
    packed = side.PackedInt8Experts.pack(torch.ones(2, 64, 64, dtype=torch.int8), torch.ones(2, 64))
    tensors = packed.tensors()
    for name, value, error in (("sizes", torch.tensor([64, 65]), ValueError), ("sums", packed.sums[:1], ValueError),
                               ("scale", packed.scale.double(), TypeError), ("data", None, TypeError)):  # fmt: skip
        with pytest.raises(error, match="data" if name == "sizes" else name):
            side.PackedInt8Experts.from_tensors(**tensors | {name: value})


@BOTH
def test_what_int8_experts_cannot_be_packed_of(side: ModuleType) -> None:
    weight, scale = torch.ones(2, 3, 4, dtype=torch.int8), torch.ones(2, 3)
    for wrong, error, name in (
        ((weight.float(), scale), TypeError, "weight"), ((weight, scale.double()), TypeError, "scale"),
        ((weight, scale[:1]), ValueError, "scale"), ((weight[0], scale), ValueError, "weight"),
    ):  # fmt: skip
        with pytest.raises(error, match=name):
            side.PackedInt8Experts.pack(*wrong)


def codes(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8).view(torch.float8_e4m3fn)


@BOTH
def test_float8_experts_keep_every_bit(side: ModuleType) -> None:
    weight, scales = codes(3, 34, 70), torch.rand(3, 5, 10)
    packed = side.PackedFp8Experts.pack(weight, scales, (8, 7))
    assert (packed.E, packed.N, packed.K, packed.block_size) == (3, 34, 70, (8, 7))
    assert torch.equal(packed.unpack().view(torch.uint8), weight.view(torch.uint8)) and torch.equal(packed.scales, scales)
    assert side.PackedFp8Experts.from_tensors(**packed.tensors()) == packed
    assert torch.equal(packed.data, reference.fused_moe.PackedFp8Experts.pack(weight, scales, (8, 7)).data)
    with pytest.raises(FrozenInstanceError):
        packed.block_size = (1, 1)


@BOTH
def test_float8_tensors_of_other_sizes_are_refused(side: ModuleType) -> None:
    packed = side.PackedFp8Experts.pack(codes(2, 64, 64), torch.ones(2, 1, 1), (64, 64))
    tensors = packed.tensors()
    for name, value, error, says in (
        ("sizes", torch.tensor([65, 64]), ValueError, "data must have shape"),
        ("scales", packed.scales[:1], ValueError, r"scales must have shape \[2, 1, 1\], got \[1, 1, 1\]"),
        ("scales", packed.scales.double(), TypeError, "scales"), ("data", packed.data.view(torch.int8), TypeError, "data"),
        ("blocks", torch.tensor([0, 64]), ValueError, "blocks must hold two numbers from 1 on"),
    ):  # fmt: skip
        with pytest.raises(error, match=says):
            side.PackedFp8Experts.from_tensors(**tensors | {name: value})


@BOTH
def test_what_float8_experts_cannot_be_packed_of(side: ModuleType) -> None:
    weight, scales = codes(2, 3, 4), torch.ones(2, 1, 1)
    for wrong, error, name in (
        ((weight.float(), scales, (3, 4)), TypeError, "weight"), ((weight, scales.half(), (3, 4)), TypeError, "scales"),
        ((weight, scales[:1], (3, 4)), ValueError, "scales"), ((weight[0], scales, (3, 4)), ValueError, "weight"),
        ((weight, scales, (3, 2)), ValueError, "scales"), ((weight, scales, (3,)), ValueError, "block_size"),
        ((weight, scales / 0, (3, 4)), ValueError, "scales"), ((weight, None, (3, 4)), TypeError, "scales"),
    ):  # fmt: skip
        with pytest.raises(error, match=name):
            side.PackedFp8Experts.pack(*wrong)


@BOTH
def test_both_stacks_are_of_one_kind(side: ModuleType) -> None:
    int8, fp8 = torch.ones(1, 6, 4, dtype=torch.int8), codes(1, 6, 4)
    ups = (side.PackedExperts.pack(torch.ones(1, 6, 4)), side.PackedInt8Experts.pack(int8, torch.ones(1, 6)),
           side.PackedFp8Experts.pack(fp8, torch.ones(1, 1, 1), (6, 4)))  # fmt: skip
    downs = (side.PackedExperts.pack(torch.ones(1, 4, 3)), side.PackedInt8Experts.pack(int8[:, :4, :3], torch.ones(1, 4)),
             side.PackedFp8Experts.pack(fp8[:, :4, :3], torch.ones(1, 1, 1), (4, 3)))  # fmt: skip
    for w13, w2 in ((ups[i], downs[j]) for i in range(3) for j in range(3) if i != j):
        says = f"w13 and w2 must be of one kind, got {type(w13).__name__} and {type(w2).__name__}"
        with pytest.raises(TypeError, match=says):
            side.fused_moe(torch.ones(1, 4), w13, w2, ONE, ID)
        with pytest.raises(TypeError, match=says):
            side.shared_expert(torch.ones(1, 4), w13, w2)


@BOTH
def test_what_cannot_be_packed(side: ModuleType) -> None:
    for wrong, error in ((torch.ones(2, 2), ValueError), (torch.ones(0, 2, 2), ValueError), (torch.ones(1, 0, 2), ValueError),
                         (torch.ones(1, 2, 2, dtype=torch.int8), TypeError), (None, TypeError)):  # fmt: skip
        with pytest.raises(error, match="weight"):
            side.PackedExperts.pack(wrong)


@BOTH
def test_only_packed_experts_are_taken(side: ModuleType) -> None:
    x, w13, w2 = torch.ones(1, 4), side.PackedExperts.pack(torch.ones(1, 6, 4)), side.PackedExperts.pack(torch.ones(1, 4, 3))
    for wrong in (torch.ones(1, 6, 4), w13.data, None):
        with pytest.raises(TypeError, match="w13 must be PackedExperts"):
            side.fused_moe(x, wrong, w2, ONE, ID)
        with pytest.raises(TypeError, match="w2 must be PackedExperts"):
            side.shared_expert(x, w13, wrong)


@BOTH
def test_weights_that_do_not_fit(side: ModuleType) -> None:
    """Sizes that differ within a block, which the packed data does not show."""
    x, pack = torch.ones(1, 4), side.PackedExperts.pack
    w13, w2 = pack(torch.ones(1, 6, 4)), pack(torch.ones(1, 4, 3))
    for gate_up, down in ((pack(torch.ones(1, 7, 4)), w2), (pack(torch.ones(1, 6, 5)), w2), (w13, pack(torch.ones(1, 4, 2))),
                          (w13, pack(torch.ones(1, 5, 3))), (w13, pack(torch.ones(2, 4, 3)))):  # fmt: skip
        with pytest.raises(ValueError, match=r"w(13|2) must hold"):
            side.fused_moe(x, gate_up, down, ONE, ID)
    with pytest.raises(ValueError, match="w13 has the unknown layout 'vnni4-n32k64'"):
        side.fused_moe(x, replace(w13, layout="vnni4-n32k64"), w2, ONE, ID)


@BOTH
def test_int8_experts_have_no_more_columns_than_sums_have_room_for(side: ModuleType) -> None:
    """Asked of a call that looks at no expert, too."""
    experts = {
        K: side.PackedInt8Experts(
            torch.zeros(1, -(-N // 32), -(-K // 64), 2, 16, 64, dtype=torch.int8), torch.zeros(1, N, dtype=torch.int32),
            torch.ones(1, N), "vnni4-n32k64", 1, N, K,
        )
        for N, K in ((2, 65537), (65537, 1))
    }  # fmt: skip
    with pytest.raises(ValueError, match="K must be at most 65536, got 65537"):
        side.fused_moe(torch.zeros(1, 65537), experts[65537], experts[1], ONE, -torch.ones_like(ID))


@pytest.mark.parametrize("tier", [tier for tier in optimized.tiers() if tier.runnable], ids=str)
def test_bits_do_not_depend_on_threads(tier: optimized.Tier) -> None:
    """One busy expert, and others with few tokens."""
    pack = optimized.fused_moe.PackedExperts.pack
    w13, w2 = pack(torch.randn(4, 2 * 80, 64).bfloat16()), pack(torch.randn(4, 64, 80).bfloat16())
    x, ids = torch.randn(50, 64).bfloat16(), torch.tensor([[0, 1 + t % 3] for t in range(50)])
    weights, threads = torch.rand(50, 2), torch.get_num_threads()
    results = []
    with optimized.use_tier(tier.name):
        try:
            for count in (1, 2, 5):
                torch.set_num_threads(count)
                results.append(optimized.fused_moe.fused_moe(x, w13, w2, weights, ids))
        finally:
            torch.set_num_threads(threads)
    assert all(torch.equal(result, results[0]) for result in results)
