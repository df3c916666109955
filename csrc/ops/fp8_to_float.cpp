// fp8_to_float: checks and registration. Contract: docs/contracts/fp8_to_float.md.
#include "kernels/fp8_to_float.h"
#include "linear/call_rows.h"

namespace kernelpair {
namespace {

Tensor fp8_to_float(const Tensor& w, ScalarType dtype) {
  KP_CHECK_VALUE(w.dim() >= 1, "w must have at least one dimension, got a scalar");
  const int64_t K = w.sizes()[w.dim() - 1];
  const Dtype wanted = float_dtype_of("dtype", dtype);
  const CallRows rows(w, K, K, "w");
  check_dtype({"w", rows.x}, {Dtype::f8e4m3});
  Tensor out = rows.new_result(wanted);
  kernels::fp8_to_float({.codes = rows.x, .out = rows.rows_of(out, wanted)});
  return out;
}

}  // namespace

KP_OPERATOR(fp8_to_float, "(Tensor w, ScalarType dtype) -> Tensor", "w.new_empty(w.shape, dtype=dtype)");

}  // namespace kernelpair
