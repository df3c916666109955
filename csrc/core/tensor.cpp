#include "core/tensor.h"

#include <torch/csrc/stable/ops.h>

#include <array>

#include "core/checks.h"
#include "core/weight_memory.h"

namespace kernelpair {
namespace {

constexpr Dtype kDtypes[] = {Dtype::bf16, Dtype::f16,    Dtype::f32, Dtype::i64, Dtype::i32,
                             Dtype::u8,   Dtype::f8e4m3, Dtype::i8,  Dtype::b8,  Dtype::f8e5m2};

int32_t torch_number_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16: return aoti_torch_dtype_bfloat16();
    case Dtype::f16: return aoti_torch_dtype_float16();
    case Dtype::f32: return aoti_torch_dtype_float32();
    case Dtype::u8: return aoti_torch_dtype_uint8();
    case Dtype::i8: return aoti_torch_dtype_int8();
    case Dtype::f8e4m3: return aoti_torch_dtype_float8_e4m3fn();
    case Dtype::f8e5m2: return aoti_torch_dtype_float8_e5m2();
    case Dtype::i32: return aoti_torch_dtype_int32();
    case Dtype::i64: return aoti_torch_dtype_int64();
    case Dtype::b8: return aoti_torch_dtype_bool();
  }
  return -1;
}

ScalarType scalar_type_of(int32_t number) {
  return torch::stable::detail::to<ScalarType>(torch::stable::detail::from(number));
}

// By torch's numbers, each of which is a call that torch answers.
Dtype dtype_of(const char* name, int32_t number) {
  static const auto numbers = [] {
    std::array<int32_t, std::size(kDtypes)> all;
    for (size_t i = 0; i < all.size(); ++i) all[i] = torch_number_of(kDtypes[i]);
    return all;
  }();
  for (size_t i = 0; i < numbers.size(); ++i)
    if (numbers[i] == number) return kDtypes[i];
  fail(ErrorKind::type, {name, " has dtype ", torch::headeronly::toString(scalar_type_of(number))});
}

// The strides of a contiguous tensor; 0 counts as 1 where its size is multiplied.
struct Dense {
  static constexpr size_t kMostDims = 8;  // packed weights of experts have seven
  int64_t strides[kMostDims];
  int64_t elements = 1;
  bool overflows;  // in elements or in dimensions

  Dense(const int64_t* sizes, size_t dim) : overflows(dim > kMostDims) {
    for (size_t d = overflows ? 0 : dim; d-- > 0;) {
      strides[d] = elements;
      overflows |= __builtin_mul_overflow(elements, sizes[d] ? sizes[d] : 1, &elements);
    }
  }
};

// Not torch::stable::empty, which looks its operator up by name at each call: 0.7 us of a small one.
Tensor new_strided(const int64_t* sizes, const int64_t* strides, size_t dim, Dtype dtype) {
  AtenTensorHandle handle;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_empty_strided(static_cast<int64_t>(dim), sizes, strides,
                                                         torch_number_of(dtype), aoti_torch_device_type_cpu(),
                                                         0, &handle));
  return Tensor(handle);
}

AtenTensorHandle another_handle(AtenTensorHandle handle) {
  AtenTensorHandle other;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_new_tensor_handle(handle, &other));
  return other;
}

}  // namespace

Tensor::Tensor(const torch::stable::Tensor& other) : handle(another_handle(other.get())) {}

std::span<const int64_t> Tensor::sizes() const {
  int64_t dim, *sizes;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dim));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_sizes(handle, &sizes));
  return {sizes, static_cast<size_t>(dim)};
}

std::span<const int64_t> Tensor::strides() const {
  int64_t dim, *strides;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dim(handle, &dim));
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_strides(handle, &strides));
  return {strides, static_cast<size_t>(dim)};
}

void* Tensor::data_ptr() const {
  void* data;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_data_ptr(handle, &data));
  return data;
}

View view_of(const char* name, const Tensor& tensor) {
  int32_t dtype, device;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  View view;
  view.dtype = dtype_of(name, dtype);
  const auto sizes = tensor.sizes(), strides = tensor.strides();
  KP_CHECK_VALUE(sizes.size() <= kMaxRank, name, " has ", sizes.size(), " dimensions, at most ", kMaxRank,
                 " are known");
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_device_type(tensor.get(), &device));
  KP_CHECK_VALUE(device == aoti_torch_device_type_cpu(), name, " is not on the CPU");
  view.dim = static_cast<int32_t>(sizes.size());
  for (int d = 0; d < view.dim; ++d) {
    view.sizes[d] = sizes[d];
    view.strides[d] = strides[d];
  }
  view.data = tensor.data_ptr();
  view.defined = true;
  return view;
}

View view_of(const char* name, const std::optional<Tensor>& tensor) {
  return tensor.has_value() ? view_of(name, *tensor) : View{};
}

Dtype float_dtype_of(const char* name, ScalarType type) {
  const Dtype dtype = dtype_of(name, torch::stable::detail::to<int32_t>(torch::stable::detail::from(type)));
  const bool is_float = dtype == Dtype::bf16 || dtype == Dtype::f16 || dtype == Dtype::f32;
  KP_CHECK_TYPE(is_float, name, " must be bfloat16, float16 or float32, got ", name_of(dtype));
  return dtype;
}

Tensor new_tensor(const int64_t* sizes, size_t dim, Dtype dtype) {
  const Dense dense(sizes, dim);
  if (dense.overflows)  // packed_linear's result has any rank; of too many elements torch says so
    return Tensor(torch::stable::empty({sizes, dim}, scalar_type_of(torch_number_of(dtype))));
  return new_strided(sizes, dense.strides, dim, dtype);
}

Tensor new_tensor(std::initializer_list<int64_t> sizes, Dtype dtype) {
  return new_tensor(sizes.begin(), sizes.size(), dtype);
}

Tensor new_transposed(std::initializer_list<int64_t> sizes, Dtype dtype) {
  int64_t in_memory[kMaxRank];
  const size_t dim = sizes.size();
  std::copy(sizes.begin(), sizes.end(), in_memory);
  std::swap(in_memory[dim - 2], in_memory[dim - 1]);
  Dense dense(in_memory, dim);
  if (dense.overflows) return new_tensor(sizes, dtype);  // torch says so
  std::swap(dense.strides[dim - 2], dense.strides[dim - 1]);
  return new_strided(sizes.begin(), dense.strides, dim, dtype);
}

Tensor new_weight(const int64_t* sizes, size_t dim, Dtype dtype) {
  const Dense dense(sizes, dim);
  size_t bytes;
  if (dense.overflows || __builtin_mul_overflow(dense.elements, element_size(dtype), &bytes) ||
      bytes < kHugePage)
    return new_tensor(sizes, dim, dtype);
  void* const data = map_weight(bytes);
  if (!data) return new_tensor(sizes, dim, dtype);  // whose error says how much
  return Tensor(torch::stable::from_blob(
      data, {sizes, dim}, {dense.strides, dim}, torch::stable::Device(torch::headeronly::DeviceType::CPU),
      scalar_type_of(torch_number_of(dtype)), [bytes](void* freed) { unmap_weight(freed, bytes); }));
}

Tensor as_rows(const Tensor& tensor, int64_t rows, int64_t columns) {
  const torch::stable::Tensor shared(another_handle(tensor.get()));
  return Tensor(torch::stable::reshape(shared, {rows, columns}));
}

}  // namespace kernelpair
