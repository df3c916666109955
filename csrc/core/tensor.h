// A tensor of torch by its handle of the stable ABI: what an operator is given, and what it returns. It owns the
// handle alone: torch::stable::Tensor shares its own, for which each argument is allocated once more, and each result
// twice.
#pragma once

#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <span>
#include <utility>

#include "core/view.h"

namespace kernelpair {

using torch::headeronly::ScalarType;

class Tensor {
  AtenTensorHandle handle = nullptr;

 public:
  Tensor() = default;
  explicit Tensor(AtenTensorHandle owned) : handle(owned) {}
  explicit Tensor(const torch::stable::Tensor& other);
  Tensor(Tensor&& other) noexcept : handle(other.release()) {}
  Tensor& operator=(Tensor&& other) noexcept {
    std::swap(handle, other.handle);
    return *this;
  }
  ~Tensor() {
    if (handle) aoti_torch_delete_tensor_object(handle);
  }

  AtenTensorHandle get() const { return handle; }
  AtenTensorHandle release() { return std::exchange(handle, nullptr); }

  std::span<const int64_t> sizes() const;
  std::span<const int64_t> strides() const;
  int64_t dim() const { return static_cast<int64_t>(sizes().size()); }
  void* data_ptr() const;
};

View view_of(const char* name, const Tensor& tensor);  // TypeError for a dtype that no kernel knows
View view_of(const char* name, const std::optional<Tensor>& tensor);

// Fresh and uninitialised, on the CPU; contiguous, or with its two last dimensions the other way round in memory.
Tensor new_tensor(std::initializer_list<int64_t> sizes, Dtype dtype);
Tensor new_tensor(const int64_t* sizes, size_t dim, Dtype dtype);
Tensor new_transposed(std::initializer_list<int64_t> sizes, Dtype dtype);
Tensor new_weight(const int64_t* sizes, size_t dim, Dtype dtype);  // in weight_memory.h's, if it is large
Tensor as_rows(const Tensor& tensor, int64_t rows,
               int64_t columns);                          // a view where strides allow it, else a copy
Dtype float_dtype_of(const char* name, ScalarType type);  // TypeError unless it is bf16, f16 or f32

}  // namespace kernelpair
