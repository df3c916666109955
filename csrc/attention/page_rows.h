// Rows of page tables, for kernels: check a run of table entries, then copy it as page ids. Both loops are
// branch-free over plain arrays, so that every tier's compiler turns them into its own vectors.
#pragma once

#include <cstdint>

#include "core/integers.h"
#include "core/view.h"

namespace kernelpair::KP_TIER {
namespace {

// How an entry becomes a page id: entry / size, by a shift where the size is a power of two.
struct PageSize {
  int64_t size;
  int shift;  // -1 if not a power of two
};

KP_INLINE PageSize page_size_of(int64_t size) {
  return {size, (size & (size - 1)) == 0 ? __builtin_ctzll(static_cast<uint64_t>(size)) : -1};
}

// An entry is good if it starts a page and its page id is in [0, 2^31).
KP_INLINE bool starts_page(int64_t entry, PageSize page) {
  return entry >= 0 && entry % page.size == 0 && entry / page.size <= INT32_MAX;
}

// The bits that no good entry has set (powers of two only).
KP_INLINE int64_t bad_bits(PageSize page) {
  const int64_t above = page.shift < 32 ? ~((int64_t{1} << (31 + page.shift)) - 1) : INT64_MIN;
  return above | (page.size - 1);
}

template <class T>
KP_INLINE bool all_start_pages(const T* entries, int64_t stride, int64_t count, PageSize page) {
  if (page.shift < 0) {
    bool good = true;
    for (int64_t i = 0; i < count; ++i) good &= starts_page(entries[i * stride], page);
    return good;
  }
  T bits = 0;
  if (stride == 1)
    for (int64_t i = 0; i < count; ++i) bits |= entries[i];
  else
    for (int64_t i = 0; i < count; ++i) bits |= entries[i * stride];
  return (static_cast<int64_t>(bits) & bad_bits(page)) == 0;
}

template <class T>
KP_INLINE void copy_page_ids(const T* entries, int64_t stride, int64_t count, PageSize page, int32_t* pages) {
  constexpr int kTopBit = 8 * sizeof(T) - 1;
  const int shift = page.shift < kTopBit ? page.shift : kTopBit;
  if (shift < 0)
    for (int64_t i = 0; i < count; ++i) pages[i] = static_cast<int32_t>(entries[i * stride] / page.size);
  else if (stride == 1)
    for (int64_t i = 0; i < count; ++i) pages[i] = static_cast<int32_t>(entries[i] >> shift);
  else
    for (int64_t i = 0; i < count; ++i) pages[i] = static_cast<int32_t>(entries[i * stride] >> shift);
}

KP_INLINE void fill_zero(int32_t* entries, int64_t count) {
  if (count) __builtin_memset(entries, 0, count * 4);
}

// `count` entries of row `row` of a request or page table from column `column` on, every `every`-th.
struct TableRun {
  int64_t row;
  int64_t column;
  int64_t every;
  int64_t count;
};

// Of the entries. Of a single one it does not count, and `every` may be so large that the product would overflow.
KP_INLINE int64_t run_stride(const View& table, TableRun run) {
  return run.count > 1 ? run.every * table.strides[1] : 0;
}

KP_INLINE bool run_is_good(const View& table, TableRun run, PageSize page) {
  const int64_t stride = run_stride(table, run);
  if (table.dtype == Dtype::i64)
    return all_start_pages(at<int64_t>(table, run.row, run.column), stride, run.count, page);
  return all_start_pages(at<int32_t>(table, run.row, run.column), stride, run.count, page);
}

KP_INLINE void copy_run(const View& table, TableRun run, PageSize page, int32_t* pages) {
  const int64_t stride = run_stride(table, run);
  if (table.dtype == Dtype::i64)
    copy_page_ids(at<int64_t>(table, run.row, run.column), stride, run.count, page, pages);
  else
    copy_page_ids(at<int32_t>(table, run.row, run.column), stride, run.count, page, pages);
}

// Lowers *lowest to `value`; several threads may do so at once.
KP_INLINE void keep_lowest(int64_t* lowest, int64_t value) {
  int64_t seen = __atomic_load_n(lowest, __ATOMIC_RELAXED);
  while (value < seen &&
         !__atomic_compare_exchange_n(lowest, &seen, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

}  // namespace
}  // namespace kernelpair::KP_TIER
