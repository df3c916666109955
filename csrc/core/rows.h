// Rows of a tensor of one to four dimensions: what its leading dimensions count, in order, whatever their
// strides. An operator makes the view, a kernel asks it for rows:
//
//   const View rows = rows_of(x);                    // x [..., D]
//   for (int64_t i = begin; i < end; ++i) norm(row_at<T>(rows, i), ...);
#pragma once

#include "core/view.h"

namespace kernelpair {

constexpr int kMostRowDims = 4;  // of such a tensor

// [outer, middle, inner, D]. Neighbouring dimensions that one stride walks through are joined, so that outer
// and middle are 1 for all but transposed tensors and slices of each head.
KP_INLINE View rows_of(const View& view) {
  View rows = view;
  rows.dim = kMostRowDims;
  int64_t sizes[] = {1, 1, 1}, strides[] = {0, 0, 0};
  int last = 2;
  bool empty = true;  // nothing stands in `last` yet
  for (int d = view.dim - 2; d >= 0; --d) {
    const int64_t size = view.sizes[d], stride = view.strides[d];
    if (size == 1) continue;
    if (empty) {
      sizes[last] = size, strides[last] = stride;
    } else if (stride == sizes[last] * strides[last]) {
      sizes[last] *= size;
    } else {
      --last;
      sizes[last] = size, strides[last] = stride;
    }
    empty = false;
  }
  for (int d = 0; d < 3; ++d) rows.sizes[d] = sizes[d], rows.strides[d] = strides[d];
  rows.sizes[3] = view.sizes[view.dim - 1];
  rows.strides[3] = 1;
  return rows;
}

KP_INLINE int64_t row_count(const View& rows) { return rows.sizes[0] * rows.sizes[1] * rows.sizes[2]; }

// Row i of what rows_of made.
template <class T>
KP_INLINE T* row_at(const View& rows, int64_t i) {
  const int64_t inner = rows.sizes[2], middle = rows.sizes[1];
  int64_t offset = i * rows.strides[2];
  if (middle > 1 || rows.sizes[0] > 1)
    offset = i % inner * rows.strides[2] + i / inner % middle * rows.strides[1] +
             i / inner / middle * rows.strides[0];
  return static_cast<T*>(rows.data) + offset;
}

}  // namespace kernelpair
