// _tile_product: c + a b by one tile instruction in each step of 32 along k, for the test that software and
// hardware tiles give the same bits.
#include "kernels/_tile_product.h"

#include <cstring>

#include "core/operator.h"

namespace kernelpair {
namespace {

// a [M <= 16, 32 * steps] bf16, b [steps, 16, N <= 16, 2] bf16, c [M, N] f32, all contiguous; returns the new
// c.
Tensor _tile_product(const Tensor& a_in, const Tensor& b_in, const Tensor& c_in) {
  const View a = view_of("a", a_in), b = view_of("b", b_in), c = view_of("c", c_in);
  check_rank({"a", a}, 2);
  check_rank({"c", c}, 2);
  const int64_t M = c.sizes[0], N = c.sizes[1], steps = a.sizes[1] / 32;
  check_shape({"a", a}, {M, 32 * steps});
  check_shape({"b", b}, {steps, 16, N, 2});
  check_dtype({"a", a}, {Dtype::bf16});
  check_dtype({"b", b}, {Dtype::bf16});
  check_dtype({"c", c}, {Dtype::f32});
  KP_CHECK_VALUE(M <= 16 && N <= 16 && M > 0 && N > 0 && steps > 0, "a and b must fit tiles");
  for (const Arg each : {Arg{"a", a}, Arg{"b", b}, Arg{"c", c}}) check_contiguous(each);
  Tensor out = new_tensor({M, N}, Dtype::f32);
  std::memcpy(out.data_ptr(), c.data, 4 * M * N);
  kernels::_tile_product({.a = a, .b = b, .c = view_of("out", out)});
  return out;
}

}  // namespace

KP_OPERATOR(_tile_product, "(Tensor a, Tensor b, Tensor c) -> Tensor", "torch.empty_like(c)");

}  // namespace kernelpair
