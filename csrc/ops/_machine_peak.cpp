// _machine_peak_products, _machine_peak_read: loops that do nothing but multiply, or read, for the roofline
// of `kernelpair bench`.
#include "kernels/_machine_peak.h"
#include "core/operator.h"
#include "core/parallel.h"

namespace kernelpair {
namespace {

constexpr int64_t kOperandBytes = 4096;
constexpr int64_t kLeastPart = 1024;  // of one thread, in elements

// operands [2048] bf16 or [4096] i8 -> [threads] i64: multiply-adds done by each thread.
Tensor _machine_peak_products(const Tensor& operands_in, int64_t rounds) {
  const View operands = view_of("operands", operands_in);
  check_dtype({"operands", operands}, {Dtype::bf16, Dtype::i8});
  check_shape({"operands", operands}, {kOperandBytes / (operands.dtype == Dtype::i8 ? 1 : 2)});
  check_contiguous({"operands", operands});
  KP_CHECK_VALUE(rounds > 0, "rounds must be above 0, got ", rounds);
  const int64_t threads = thread_count();
  Tensor done = new_tensor(&threads, 1, Dtype::i64);
  kernels::_machine_peak_products({.operands = operands, .done = view_of("done", done), .rounds = rounds});
  return done;
}

// buffer [n] f32 -> [threads] i64: bytes read by each thread, of a part of its own.
Tensor _machine_peak_read(const Tensor& buffer_in, int64_t rounds) {
  const View buffer = view_of("buffer", buffer_in);
  check_dtype({"buffer", buffer}, {Dtype::f32});
  check_rank({"buffer", buffer}, 1);
  check_contiguous({"buffer", buffer});
  KP_CHECK_VALUE(rounds > 0, "rounds must be above 0, got ", rounds);
  const int64_t threads = thread_count();
  KP_CHECK_VALUE(buffer.sizes[0] >= threads * kLeastPart, "buffer must hold ", kLeastPart,
                 " elements for each of ", threads, " threads, got ", buffer.sizes[0]);
  Tensor read = new_tensor(&threads, 1, Dtype::i64);
  kernels::_machine_peak_read({.buffer = buffer, .read = view_of("read", read), .rounds = rounds});
  return read;
}

}  // namespace

KP_OPERATOR(_machine_peak_products, "(Tensor operands, int rounds) -> Tensor",
            "torch.empty(torch.get_num_threads(), dtype=torch.int64)");
KP_OPERATOR(_machine_peak_read, "(Tensor buffer, int rounds) -> Tensor",
            "torch.empty(torch.get_num_threads(), dtype=torch.int64)");

}  // namespace kernelpair
