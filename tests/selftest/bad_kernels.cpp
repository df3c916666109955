// Deliberately bad kernels, one for each class of fault that the harness must catch. The contract that they break:
//   out[slots[n], :] = scale * x[n, :]   for float32 x [rows, width] and out [P, width]; slots are distinct and in [0, P).
// Test-only: plain C functions over raw pointers, called through ctypes; no part of the library.
#include <dlfcn.h>
#include <signal.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <thread>

#include <signal.h>
#include <unistd.h>

struct Call {
  float* x;
  const int64_t* slots;
  float* out;
  int64_t rows, width, slots_in_all, x_stride, out_stride, threads;
  float scale;
};

static void rows_of(const Call& c, int64_t begin, int64_t end, int64_t width, float scale) {
  for (int64_t n = begin; n < end; ++n)
    for (int64_t d = 0; d < width; ++d) c.out[c.slots[n] * c.out_stride + d] = scale * c.x[n * c.x_stride + d];
}

static void right(const Call& c) { rows_of(c, 0, c.rows, c.width, c.scale); }

static bool empty(const Call& c) { return c.rows == 0 || c.width == 0; }

static volatile float sink;
static volatile int zero = 0;

// No tail call, and no stack that is large enough.
__attribute__((noinline)) static float deeper(float depth) {
  volatile char room[1 << 12];
  room[0] = static_cast<char>(depth);
  return deeper(depth + 1) + room[0];
}

#define KERNEL(name) extern "C" void name(const Call* call)
#define BEGIN       \
  const Call& c = *call; \
  right(c);         \
  if (empty(c)) return

KERNEL(good) { right(*call); }

KERNEL(writes_left) { BEGIN; c.out[-1] = 1.0f; }

KERNEL(writes_right) { BEGIN; c.out[(c.slots_in_all - 1) * c.out_stride + c.width] = 1.0f; }

KERNEL(reads_past) { BEGIN; sink = c.x[(c.rows - 1) * c.x_stride + c.width]; }

KERNEL(unwritten) { rows_of(*call, 0, call->rows - 1, call->width, call->scale); }

KERNEL(clobbers_neighbour) {
  BEGIN;
  bool used[4096] = {};
  for (int64_t n = 0; n < c.rows; ++n) used[c.slots[n]] = true;
  for (int64_t p = 0; p < c.slots_in_all; ++p)
    if (!used[p]) { c.out[p * c.out_stride] = 0.0f; return; }
}

KERNEL(changes_input) { BEGIN; c.x[0] += 1.0f; }

KERNEL(nan_output) { BEGIN; c.out[c.slots[0] * c.out_stride] = std::numeric_limits<float>::quiet_NaN(); }

KERNEL(small_error) { BEGIN; c.out[c.slots[c.rows / 2] * c.out_stride + c.width / 2] *= 1.0f + 1.0f / 64; }

KERNEL(wrong_tail) {
  BEGIN;
  const int64_t body = c.width / 8 * 8;
  for (int64_t n = 0; n < c.rows; ++n)
    for (int64_t d = body; d < c.width; ++d) c.out[c.slots[n] * c.out_stride + d] = c.x[n * c.x_stride + d];
}

KERNEL(race) {
  BEGIN;
  // Two threads own the same rows; who comes last wins.
  std::thread other([&] { rows_of(c, 0, c.rows, c.width, 2 * c.scale); });
  rows_of(c, 0, c.rows, c.width, c.scale);
  other.join();
}

KERNEL(shared_scratch) {
  BEGIN;
  // One place for all callers: what a call finds there may be another's.
  static std::atomic<const Call*> current;
  current = &c;
  std::this_thread::sleep_for(std::chrono::microseconds(200));
  rows_of(c, 0, c.rows, c.width, current == &c ? c.scale : 2 * c.scale);
}

KERNEL(thread_dependent) { rows_of(*call, 0, call->rows, call->width, call->threads == 3 ? 2 * call->scale : call->scale); }

KERNEL(segfault) { BEGIN; *reinterpret_cast<volatile int*>(16) = 1; }

KERNEL(kills_itself) { BEGIN; kill(getpid(), SIGSEGV); }

KERNEL(recurses) { BEGIN; sink = deeper(1); }

KERNEL(illegal_instruction) { BEGIN; __builtin_trap(); }

KERNEL(division_by_zero) { BEGIN; sink = static_cast<float>(7 / zero); }

KERNEL(aborts) { BEGIN; std::abort(); }

KERNEL(corrupts_heap) {
  BEGIN;
  char* block = static_cast<char*>(std::malloc(24));
  std::memset(block - 16, 0x41, 64);
  std::free(block);
}

KERNEL(loops_forever) {
  BEGIN;
  for (volatile int64_t spin = 0;; ++spin) {}
}

// --- side effects: called beside a right kernel ---

#if defined(__x86_64__)
extern "C" void set_mxcsr(int value) { _mm_setcsr(static_cast<unsigned>(value)); }

extern "C" void set_x87(int value) {
  const uint16_t word = static_cast<uint16_t>(value);
  asm volatile("fldcw %0" : : "m"(word));
}

// In the threads that torch computes with, but for the calling one: whichever OpenMP is loaded is asked.
extern "C" void set_fp_in_pool(int mxcsr, int x87) {
  using Parallel = void (*)(void (*)(void*), void*, unsigned, unsigned);
  using Number = int (*)();
  const auto parallel = reinterpret_cast<Parallel>(dlsym(RTLD_DEFAULT, "GOMP_parallel"));
  static const auto number = reinterpret_cast<Number>(dlsym(RTLD_DEFAULT, "omp_get_thread_num"));
  static int wanted[2];
  wanted[0] = mxcsr;
  wanted[1] = x87;
  if (parallel && number)
    parallel([](void*) {
      if (number() == 0) return;
      set_mxcsr(wanted[0]);
      set_x87(wanted[1]);
    }, nullptr, 2, 0);
}
#endif

extern "C" void set_alternative_stack() {
  static char stacks[2][1 << 16];
  static int turn = 0;
  stack_t stack = {};
  stack.ss_sp = stacks[turn ^= 1];
  stack.ss_size = sizeof stacks[0];
  sigaltstack(&stack, nullptr);
}
