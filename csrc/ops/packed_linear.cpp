// packed_linear: checks and registration. Contract: docs/contracts/packed_linear.md.
#include "kernels/packed_linear.h"
#include "core/operator.h"
#include "linear/packed_weight.h"

namespace kernelpair {
namespace {

// x as rows: more dimensions than a View holds are folded by torch, which copies only if it must.
Tensor with_known_rank(const Tensor& x, int64_t rows, int64_t K) {
  return x.dim() <= kMaxRank ? x : torch::stable::reshape(x, {rows, K});
}

Tensor packed_linear(const Tensor& x_in, const Tensor& packed_weight, int64_t N, int64_t K,
                     const std::optional<Tensor>& bias_in) {
  const View packed = view_of("packed_weight", packed_weight), bias = view_of("bias", bias_in);
  check_packed_weight({"packed_weight", packed}, N, K);
  const auto sizes = x_in.sizes();
  KP_CHECK_VALUE(sizes.size() >= 1 && sizes[sizes.size() - 1] == K, "x must have K = ", K, " columns");
  int64_t rows = 1;
  std::vector<int64_t> out_sizes(sizes.data(), sizes.data() + sizes.size());
  out_sizes.back() = N;
  for (size_t d = 0; d + 1 < sizes.size(); ++d) rows *= sizes[d];
  const Tensor folded = with_known_rank(x_in, rows, K);
  const View x = view_of("x", folded);
  check_float({"x", x});
  check_same_dtype({"packed_weight", packed}, {{"x", x}});
  if (bias.defined) {
    check_float({"bias", bias});
    check_shape({"bias", bias}, {N});
  }
  Tensor out = new_tensor(out_sizes.data(), out_sizes.size(), x.dtype);
  View out_rows;  // [rows, N], contiguous
  out_rows.data = out.data_ptr();
  out_rows.dtype = x.dtype;
  out_rows.dim = 2;
  out_rows.sizes[0] = rows;
  out_rows.sizes[1] = out_rows.strides[0] = N;
  out_rows.strides[1] = 1;
  out_rows.defined = true;
  kernels::packed_linear({.x = x, .packed_weight = packed, .bias = bias, .out = out_rows});
  return out;
}

}  // namespace

KP_OPERATOR(packed_linear, "(Tensor x, Tensor packed_weight, int N, int K, Tensor? bias=None) -> Tensor",
            "x.new_empty((*x.shape[:-1], N))");

}  // namespace kernelpair
