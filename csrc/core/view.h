// View: what a kernel sees of a tensor. Plain data, so that ops (compiled with torch) and kernels (without)
// can share it. Everything here is always inlined: no symbol of this header may appear in an object
// (tests/test_symbols.py).
#pragma once

#include <cstdint>

#define KP_INLINE inline __attribute__((always_inline))
#define KP_NOINLINE __attribute__((noinline))
#define KP_LAMBDA_INLINE __attribute__((always_inline))

namespace kernelpair {

enum class Dtype : int32_t { bf16, f16, f32, u8, i8, f8e4m3, f8e5m2, i32, i64, b8 };

constexpr int kMaxRank = 6;

// Sizes and strides count elements. An absent optional tensor is a View with defined == false.
struct View {
  void* data = nullptr;
  Dtype dtype = Dtype::f32;
  int32_t dim = 0;
  int64_t sizes[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};
  bool defined = false;
};

constexpr View kAbsent{};  // what an optional view is where nobody gives it

KP_INLINE int64_t element_size(Dtype dtype) {
  switch (dtype) {
    case Dtype::i64: return 8;
    case Dtype::f32:
    case Dtype::i32: return 4;
    case Dtype::bf16:
    case Dtype::f16: return 2;
    default: return 1;
  }
}

KP_INLINE int64_t element_count(const View& view) {
  int64_t count = 1;
  for (int d = 0; d < view.dim; ++d) count *= view.sizes[d];
  return count;
}

// Address of element (i), (i, j), ... in the leading dimensions; the remaining indices are 0.
template <class T = char>
KP_INLINE T* at(const View& view, int64_t i) {
  return reinterpret_cast<T*>(static_cast<char*>(view.data) + i * view.strides[0] * element_size(view.dtype));
}

template <class T = char>
KP_INLINE T* at(const View& view, int64_t i, int64_t j) {
  return reinterpret_cast<T*>(static_cast<char*>(view.data) +
                              (i * view.strides[0] + j * view.strides[1]) * element_size(view.dtype));
}

template <class T = char>
KP_INLINE T* at(const View& view, int64_t i, int64_t j, int64_t k) {
  return reinterpret_cast<T*>(static_cast<char*>(view.data) +
                              (i * view.strides[0] + j * view.strides[1] + k * view.strides[2]) *
                                  element_size(view.dtype));
}

// Entry i of an int32 or int64 vector of any stride.
KP_INLINE int64_t index_at(const View& view, int64_t i) {
  const int64_t offset = i * view.strides[0];
  return view.dtype == Dtype::i64 ? static_cast<const int64_t*>(view.data)[offset]
                                  : static_cast<const int32_t*>(view.data)[offset];
}

// Entry (i, j) of an int32 or int64 matrix of any strides, such as a request or page table.
KP_INLINE int64_t index_at(const View& view, int64_t i, int64_t j) {
  const int64_t offset = i * view.strides[0] + j * view.strides[1];
  return view.dtype == Dtype::i64 ? static_cast<const int64_t*>(view.data)[offset]
                                  : static_cast<const int32_t*>(view.data)[offset];
}

}  // namespace kernelpair
