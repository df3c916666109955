// The rows of a linear layer's x [..., K] and of its fresh result [..., N], for the operators.
#pragma once

#include <vector>

#include "core/operator.h"

namespace kernelpair {

// A bias of any float dtype, one number for each output, or none.
inline void check_linear_bias(const View& bias, int64_t N) {
  if (!bias.defined) return;
  check_float({"bias", bias});
  check_shape({"bias", bias}, {N});
}

struct CallRows {
  int64_t rows = 1;
  std::vector<int64_t> out_sizes;
  bool dense;     // in the last dimension, as the caller has x: folding may have copied it
  Tensor folded;  // what x views, where it has more dimensions than a View holds
  View x;

  CallRows(const Tensor& x_in, int64_t N, int64_t K, const char* name = "x") {
    const auto sizes = x_in.sizes();
    KP_CHECK_VALUE(sizes.size() >= 1 && sizes[sizes.size() - 1] == K, name, " must have K = ", K, " columns");
    out_sizes.assign(sizes.begin(), sizes.end());
    out_sizes.back() = N;
    for (size_t d = 0; d + 1 < sizes.size(); ++d) rows *= sizes[d];
    dense = K <= 1 || rows == 0 || x_in.strides()[sizes.size() - 1] == 1;
    if (sizes.size() > kMaxRank) folded = as_rows(x_in, rows, K);
    x = view_of(name, sizes.size() > kMaxRank ? folded : x_in);
  }

  Tensor new_result(Dtype dtype) const { return new_tensor(out_sizes.data(), out_sizes.size(), dtype); }

  // [rows, N], contiguous.
  View rows_of(const Tensor& result, Dtype dtype) const {
    View view;
    view.data = result.data_ptr();
    view.dtype = dtype;
    view.dim = 2;
    view.sizes[0] = rows;
    view.sizes[1] = view.strides[0] = out_sizes.back();
    view.strides[1] = 1;
    view.defined = true;
    return view;
  }
};

}  // namespace kernelpair
