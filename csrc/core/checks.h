// Argument checks of the operators, and how their errors reach Python.
//
// The stable ABI turns every C++ exception into RuntimeError. So a check throws a message that starts with a
// marker, `ValueError: store_cache: indices[3] = 9 is outside [0, 8)`, and the Python face raises the class
// that it names. Every check runs before the first write.
#pragma once

#include <concepts>
#include <functional>
#include <initializer_list>
#include <stdexcept>
#include <string>
#include <string_view>

#include "core/view.h"

namespace kernelpair {

enum class ErrorKind { type, value, index };

// What a check throws; the operator's name joins at its boundary (operator.h).
struct ArgumentError : std::runtime_error {
  ErrorKind kind;
  ArgumentError(ErrorKind error_kind, const std::string& message)
      : std::runtime_error(message), kind(error_kind) {}
};

// Text or a number of a message. No stream and no template knows which parts a message has: the compiler would
// take longer for the messages of an operator than for all else that it does.
class Part {
 public:
  Part(const char* text) : kind_(Kind::text), text_(text) {}
  Part(const std::string& text) : kind_(Kind::text), text_(text) {}
  Part(std::integral auto number) : kind_(Kind::integer), integer_(static_cast<int64_t>(number)) {}
  Part(double number) : kind_(Kind::real), real_(number) {}
  void append_to(std::string& message) const;

 private:
  enum class Kind { text, integer, real } kind_;
  union {
    std::string_view text_;
    int64_t integer_;
    double real_;
  };
};

std::string concat(std::initializer_list<Part> parts);

// The text in quotes. JSON needs no escapes beyond these two: what is quoted are our own ASCII literals.
std::string json_string(const std::string& text);

[[noreturn]] void fail(ErrorKind kind, std::initializer_list<Part> message);

// KP_CHECK_VALUE(Dv > 0, "v must not be empty, got width ", Dv): the message is only built when the check
// fails.
#define KP_CHECK_AS(kind, condition, ...) \
  (__builtin_expect(!!(condition), 1) ? void(0) : ::kernelpair::fail(kind, {__VA_ARGS__}))
#define KP_CHECK_TYPE(condition, ...) KP_CHECK_AS(::kernelpair::ErrorKind::type, condition, __VA_ARGS__)
#define KP_CHECK_VALUE(condition, ...) KP_CHECK_AS(::kernelpair::ErrorKind::value, condition, __VA_ARGS__)
#define KP_CHECK_INDEX(condition, ...) KP_CHECK_AS(::kernelpair::ErrorKind::index, condition, __VA_ARGS__)

// A view with the name of its argument, for messages: check_rank({"k", k}, 3).
struct Arg {
  const char* name;
  const View& view;
};

const char* name_of(Dtype dtype);
std::string shape_of(const View& view);

void check_rank(Arg arg, int rank);
void check_shape(Arg arg, std::initializer_list<int64_t> shape);
void check_dense_last_dim(Arg arg);                                    // any stride where the size is 0 or 1
void check_contiguous(Arg arg);                                        // any stride where the size is 1
void check_dense(int rank, std::initializer_list<Arg> args);           // both; absent ones are left out
void check_dtype(Arg arg, std::initializer_list<Dtype> dtypes);        // one of these
void check_same_dtype(Arg first, std::initializer_list<Arg> others);   // absent ones are left out
void check_float(Arg arg);                                             // bf16, f16, f32
void check_index_dtype(Arg arg);                                       // i32, i64
void check_parameter_vector(Arg arg, int64_t size, Dtype call_dtype);  // [size], the call's dtype or f32
// Vectors [size] of i32 or i64; absent ones are left out.
void check_index_vectors(int64_t size, std::initializer_list<Arg> args);

// 0 <= index < size for every entry of a vector but the pads; IndexError names the entry and the value.
struct Pad {
  bool given = false;
  int64_t slot = 0;
};
void check_indices_in_range(Arg indices, int64_t size, Pad pad = {});
void check_no_duplicates(Arg indices, Pad pad = {});
// Both, for the entries i with live(i) alone; the others are never interpreted.
void check_written_slots(Arg indices, int64_t slots, Pad pad, const std::function<bool(int64_t)>& live);
// [B + 1]: from 0 or above, never falling, up to `tokens` or below.
void check_offsets(Arg offsets, int64_t tokens);
void check_positive(const char* name, double value);  // and finite, both in float32

// No mutated argument may share a byte with itself, with another mutated one or with one that is read.
void check_disjoint(std::initializer_list<Arg> mutated, std::initializer_list<Arg> read);
void check_apart(Arg a, Arg b);  // the same for two arguments that are only read

}  // namespace kernelpair
