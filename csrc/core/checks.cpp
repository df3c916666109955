#include "core/checks.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <vector>

namespace kernelpair {

void Part::append_to(std::string& message) const {
  switch (kind_) {
    case Kind::text: message += text_; break;
    case Kind::integer: message += std::to_string(integer_); break;
    case Kind::real: {
      char digits[32];
      std::snprintf(digits, sizeof digits, "%g", real_);
      message += digits;
    }
  }
}

std::string concat(std::initializer_list<Part> parts) {
  std::string text;
  for (const Part& part : parts) part.append_to(text);
  return text;
}

void fail(ErrorKind kind, std::initializer_list<Part> message) { throw ArgumentError(kind, concat(message)); }

std::string json_string(const std::string& text) {
  std::string result = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + "\"";
}

const char* name_of(Dtype dtype) {
  switch (dtype) {
    case Dtype::bf16: return "bfloat16";
    case Dtype::f16: return "float16";
    case Dtype::f32: return "float32";
    case Dtype::u8: return "uint8";
    case Dtype::i8: return "int8";
    case Dtype::f8e4m3: return "float8_e4m3fn";
    case Dtype::f8e5m2: return "float8_e5m2";
    case Dtype::i32: return "int32";
    case Dtype::i64: return "int64";
    case Dtype::b8: return "bool";
  }
  return "unknown";
}

namespace {

std::string listed(const int64_t* values, size_t count) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + "]";
}

std::string names_of(std::initializer_list<Dtype> dtypes) {
  std::string text;
  for (Dtype dtype : dtypes) text += (text.empty() ? "" : ", ") + std::string(name_of(dtype));
  return text;
}

}  // namespace

std::string shape_of(const View& view) { return listed(view.sizes, view.dim); }

void check_rank(Arg arg, int rank) {
  KP_CHECK_VALUE(arg.view.dim == rank, arg.name, " must have ", rank, " dimensions, got shape ",
                 shape_of(arg.view));
}

void check_shape(Arg arg, std::initializer_list<int64_t> shape) {
  const bool same = arg.view.dim == static_cast<int>(shape.size()) &&
                    std::equal(shape.begin(), shape.end(), arg.view.sizes);
  KP_CHECK_VALUE(same, arg.name, " must have shape ", listed(shape.begin(), shape.size()), ", got ",
                 shape_of(arg.view));
}

void check_contiguous(Arg arg) {
  int64_t stride = 1;
  for (int d = arg.view.dim - 1; d >= 0; stride *= arg.view.sizes[d--])
    KP_CHECK_VALUE(arg.view.sizes[d] == 1 || arg.view.strides[d] == stride, arg.name, " must be contiguous");
}

void check_dense_last_dim(Arg arg) {
  const View& view = arg.view;
  if (view.dim == 0 || view.sizes[view.dim - 1] <= 1 || element_count(view) == 0) return;
  KP_CHECK_VALUE(view.strides[view.dim - 1] == 1, arg.name,
                 " must be dense in its last dimension, got strides ", listed(view.strides, view.dim));
}

void check_dense(int rank, std::initializer_list<Arg> args) {
  for (Arg arg : args) {
    if (!arg.view.defined) continue;
    check_rank(arg, rank);
    check_dense_last_dim(arg);
  }
}

void check_dtype(Arg arg, std::initializer_list<Dtype> dtypes) {
  KP_CHECK_TYPE(std::find(dtypes.begin(), dtypes.end(), arg.view.dtype) != dtypes.end(), arg.name,
                " has dtype ", name_of(arg.view.dtype), ", expected one of ", names_of(dtypes));
}

void check_same_dtype(Arg first, std::initializer_list<Arg> others) {
  for (Arg other : others)
    KP_CHECK_TYPE(!other.view.defined || other.view.dtype == first.view.dtype, other.name, " has dtype ",
                  name_of(other.view.dtype), ", but ", first.name, " has ", name_of(first.view.dtype));
}

void check_float(Arg arg) { check_dtype(arg, {Dtype::bf16, Dtype::f16, Dtype::f32}); }

void check_index_dtype(Arg arg) { check_dtype(arg, {Dtype::i32, Dtype::i64}); }

void check_index_vectors(int64_t size, std::initializer_list<Arg> args) {
  for (Arg arg : args) {
    if (!arg.view.defined) continue;
    check_index_dtype(arg);
    check_shape(arg, {size});
  }
}

void check_parameter_vector(Arg arg, int64_t size, Dtype call_dtype) {
  check_shape(arg, {size});
  check_dtype(arg, {call_dtype, Dtype::f32});
}

void check_indices_in_range(Arg indices, int64_t size, Pad pad) {
  for (int64_t i = 0; i < indices.view.sizes[0]; ++i) {
    const int64_t index = index_at(indices.view, i);
    const bool good = (index >= 0 && index < size) || (pad.given && index == pad.slot);
    KP_CHECK_INDEX(good, indices.name, "[", i, "] = ", index, " is outside [0, ", size, ")");
  }
}

namespace {

// A set of integers: open addressing in a table of at least twice as many places as entries.
class IndexSet {
 public:
  explicit IndexSet(int64_t entries) {
    while (static_cast<int64_t>(1) << bits_ < 2 * entries) ++bits_;
    places_.assign(static_cast<size_t>(1) << bits_, kEmpty);
  }

  bool insert(int64_t index) {  // false if it is a member already
    const size_t mask = places_.size() - 1;
    size_t place = (static_cast<uint64_t>(index) * 0x9E3779B97F4A7C15u) >> (64 - bits_);
    while (places_[place] != kEmpty && places_[place] != index) place = (place + 1) & mask;
    if (places_[place] == index) return false;
    places_[place] = index;
    return true;
  }

 private:
  static constexpr int64_t kEmpty = -1;  // no index is negative: the range was checked before
  int bits_ = 4;
  std::vector<int64_t> places_;
};

bool strictly_ascending(const View& indices) {
  for (int64_t i = 1; i < indices.sizes[0]; ++i)
    if (index_at(indices, i - 1) >= index_at(indices, i)) return false;
  return true;
}

}  // namespace

void check_no_duplicates(Arg indices, Pad pad) {
  const int64_t count = indices.view.sizes[0];
  if (strictly_ascending(indices.view)) return;
  IndexSet seen(count);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t index = index_at(indices.view, i);
    if (pad.given && index == pad.slot) continue;
    KP_CHECK_VALUE(seen.insert(index), indices.name, " holds slot ", index,
                   " more than once (again at entry ", i, ")");
  }
}

void check_written_slots(Arg indices, int64_t slots, Pad pad, const std::function<bool(int64_t)>& live) {
  std::vector<int64_t> written(indices.view.sizes[0], -1);  // -1: not written
  for (int64_t i = 0; i < indices.view.sizes[0]; ++i) {
    const int64_t slot = index_at(indices.view, i);
    if (!live(i) || (pad.given && slot == pad.slot)) continue;
    KP_CHECK_INDEX(slot >= 0 && slot < slots, indices.name, "[", i, "] = ", slot, " is outside [0, ", slots,
                   ")");
    written[i] = slot;
  }
  View view = indices.view;
  view.data = written.data();
  view.dtype = Dtype::i64;
  view.strides[0] = 1;
  check_no_duplicates({indices.name, view}, {true, -1});
}

void check_offsets(Arg offsets, int64_t tokens) {
  check_rank(offsets, 1);
  const int64_t count = offsets.view.sizes[0];
  KP_CHECK_VALUE(count > 0, offsets.name, " must hold at least one offset");
  int64_t before = 0;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t offset = index_at(offsets.view, i);
    KP_CHECK_VALUE(i || offset >= 0, offsets.name, "[0] = ", offset, " is negative");
    KP_CHECK_VALUE(offset >= before, offsets.name, " must not decrease: ", offsets.name, "[", i,
                   "] = ", offset, " after ", before);
    before = offset;
  }
  KP_CHECK_VALUE(before <= tokens, offsets.name, "[", count - 1, "] = ", before, " lies beyond the ", tokens,
                 " tokens");
}

void check_positive(const char* name, double value) {
  // Not as a float: the processor may have been told to flush small ones to 0.
  constexpr double kZero = 0x1p-150,
                   kInfinite = 0x1.ffffffp127;  // up to and from where float32 rounds to these
  KP_CHECK_VALUE(value > kZero && value < kInfinite, name, " must be finite and > 0 in float32, got ", value);
}

namespace {

// Insertion sort for at most kMaxRank entries.
template <class T, class Before>
void sort_few(T* entries, int count, Before before) {
  for (int i = 1; i < count; ++i)
    for (int j = i; j > 0 && before(entries[j], entries[j - 1]); --j) std::swap(entries[j], entries[j - 1]);
}

struct Span {
  const char* begin;
  const char* end;
};

Span span_of(const View& view) {
  int64_t reach = 0;
  for (int d = 0; d < view.dim; ++d) reach += (view.sizes[d] - 1) * view.strides[d];
  const char* begin = static_cast<const char*>(view.data);
  return {begin, begin + (reach + 1) * element_size(view.dtype)};
}

// One dimension of two tensors that have it in common: the stride and how many steps each takes.
struct Period {
  int64_t stride;
  int64_t steps_a;
  int64_t steps_b;
};

// The common dimensions from the largest stride down; false if a stride differs.
bool common_periods(const View& a, const View& b, Period* periods, int& count) {
  count = 0;
  for (int d = 0; d < a.dim; ++d) {
    const int64_t size_a = a.sizes[d], size_b = b.sizes[d];
    if (size_a <= 1 && size_b <= 1) continue;
    if (size_a > 1 && size_b > 1 && a.strides[d] != b.strides[d]) return false;
    periods[count++] = {size_a > 1 ? a.strides[d] : b.strides[d], size_a - 1, size_b - 1};
  }
  sort_few(periods, count, [](const Period& x, const Period& y) { return x.stride > y.stride; });
  return true;
}

// Whether two tensors of equal strides lie in a common buffer without a shared byte, as the k and v halves of
// a fused buffer do: from the largest stride down, the distance must part them inside one period.
bool interleave(const View* a, const View* b) {
  const int64_t width = element_size(a->dtype);
  if (width != element_size(b->dtype) || a->dim != b->dim) return false;
  int64_t bytes = static_cast<const char*>(b->data) - static_cast<const char*>(a->data);
  if (bytes < 0) {
    std::swap(a, b);
    bytes = -bytes;
  }
  Period periods[kMaxRank];
  int count = 0;
  if (bytes % width || !common_periods(*a, *b, periods, count)) return false;
  int64_t distance = bytes / width;
  for (int level = 0; level < count; ++level) {
    int64_t reach_a = 0, reach_b = 0;
    for (int inner = level + 1; inner < count; ++inner) {
      reach_a += periods[inner].steps_a * periods[inner].stride;
      reach_b += periods[inner].steps_b * periods[inner].stride;
    }
    const int64_t stride = periods[level].stride;
    distance %= std::max<int64_t>(stride, 1);
    if (reach_a >= stride || distance + reach_b >= stride) return false;
    if (distance > reach_a) return true;
  }
  return false;
}

void check_not_overlapping_itself(Arg arg) {
  struct {
    int64_t stride, size;
  } dims[kMaxRank];
  int count = 0;
  for (int d = 0; d < arg.view.dim; ++d)
    if (arg.view.sizes[d] > 1) dims[count++] = {arg.view.strides[d], arg.view.sizes[d]};
  sort_few(dims, count, [](const auto& x, const auto& y) { return x.stride < y.stride; });
  int64_t reach = 0;
  for (int d = 0; d < count; ++d) {
    KP_CHECK_VALUE(dims[d].stride > reach, arg.name, " overlaps itself: shape ", shape_of(arg.view),
                   ", strides ", listed(arg.view.strides, arg.view.dim));
    reach += (dims[d].size - 1) * dims[d].stride;
  }
}

}  // namespace

void check_apart(Arg a, Arg b) {
  if (!a.view.defined || element_count(a.view) == 0 || !b.view.defined || element_count(b.view) == 0) return;
  const Span first = span_of(a.view), second = span_of(b.view);
  const bool intersect = first.begin < second.end && second.begin < first.end;
  KP_CHECK_VALUE(!intersect || interleave(&a.view, &b.view), a.name, " and ", b.name, " overlap in memory");
}

void check_disjoint(std::initializer_list<Arg> mutated, std::initializer_list<Arg> read) {
  for (const Arg* a = mutated.begin(); a != mutated.end(); ++a) {
    if (!a->view.defined || element_count(a->view) == 0) continue;
    check_not_overlapping_itself(*a);
    for (const Arg* b = a + 1; b != mutated.end(); ++b) check_apart(*a, *b);
    for (const Arg& b : read) check_apart(*a, b);
  }
}

}  // namespace kernelpair
