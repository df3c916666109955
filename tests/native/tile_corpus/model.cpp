// Products of tiles, line by line as the instruction set's documentation has them, and a way to see a signal.
//
// It shares nothing with csrc: plain loops over one element at a time, and the flush of denormals written out.
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>

namespace {

using Rows = uint8_t (*)[64];

float flushed(float x) { return std::fabs(x) < FLT_MIN ? std::copysign(0.0f, x) : x; }

// With an exponent as wide as need be, which decides whether the rounded result is too small.
float fused(float a, float b, float c) {
  a = flushed(a), b = flushed(b), c = flushed(c);
  const float r = std::fma(a, b, c);
  if (std::fabs(r) > FLT_MIN || std::isnan(r) || r == 0) return r;
  const float up = std::ldexp(1.0f, 60);
  const float large = std::fabs(a) > std::fabs(b) ? std::fma(a, b * up, c * up) : std::fma(a * up, b, c * up);
  return std::fabs(large) < FLT_MIN * up ? std::copysign(0.0f, large) : large / up;
}

float added(float a, float b) { return flushed(flushed(a) + flushed(b)); }

float bf16(const uint8_t* at) {
  uint32_t word = 0;
  std::memcpy(reinterpret_cast<char*>(&word) + 2, at, 2);
  float value;
  std::memcpy(&value, &word, 4);
  return value;
}

float fp16(const uint8_t* at) {
  _Float16 value;
  std::memcpy(&value, at, 2);
  return static_cast<float>(value);
}

void float_product(float (*wide)(const uint8_t*), Rows c, Rows a, Rows b, int rows, int columns, int depth) {
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < columns; ++n) {
      float even = 0, odd = 0, sum;
      for (int k = 0; k < depth; ++k) {
        even = fused(wide(a[m] + 4 * k), wide(b[k] + 4 * n), even);
        odd = fused(wide(a[m] + 4 * k + 2), wide(b[k] + 4 * n + 2), odd);
      }
      std::memcpy(&sum, c[m] + 4 * n, 4);
      sum = added(sum, added(even, odd));
      std::memcpy(c[m] + 4 * n, &sum, 4);
    }
}

int64_t element(uint8_t byte, bool is_signed) { return is_signed ? static_cast<int8_t>(byte) : byte; }

void byte_product(bool a_signed, bool b_signed, Rows c, Rows a, Rows b, int rows, int columns, int depth) {
  for (int m = 0; m < rows; ++m)
    for (int n = 0; n < columns; ++n) {
      int32_t start;
      std::memcpy(&start, c[m] + 4 * n, 4);
      int64_t sum = start;
      for (int k = 0; k < depth; ++k)
        for (int i = 0; i < 4; ++i)
          sum += element(a[m][4 * k + i], a_signed) * element(b[k][4 * n + i], b_signed);
      const auto low = static_cast<uint32_t>(sum);
      std::memcpy(c[m] + 4 * n, &low, 4);
    }
}

sigjmp_buf back;
thread_local bool watching = false;
uint64_t seen[4];  // signal, code, address, instruction

void watch(int number, siginfo_t* info, void* context) {
  seen[0] = number;
  seen[1] = info->si_code;
  seen[2] = reinterpret_cast<uint64_t>(info->si_addr);
  seen[3] = static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP];
  if (watching) siglongjmp(back, 1);
  signal(number, SIG_DFL);
}

struct sigaction outer;
int nested = 0;

void on_top(int number, siginfo_t* info, void* context) {
  ++nested;
  outer.sa_sigaction(number, info, context);
}

void handle(int number, void (*handler)(int, siginfo_t*, void*), struct sigaction* before) {
  struct sigaction action = {};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(number, &action, before);
}

}  // namespace

extern "C" {

// Rows past the last and columns past the last of c become zero.
void model_product(int kind, Rows c, Rows a, Rows b, int rows, int columns, int depth) {
  if (kind < 2)
    float_product(kind == 0 ? bf16 : fp16, c, a, b, rows, columns, depth);
  else
    byte_product(kind & 2, kind & 1, c, a, b, rows, columns, depth);
  for (int m = 0; m < 16; ++m)
    for (int i = m < rows ? 4 * columns : 0; i < 64; ++i) c[m][i] = 0;
}

// The program's own handlers, which are there before any other.
void watch_signals() {
  for (const int number : {SIGILL, SIGSEGV, SIGBUS}) handle(number, watch, nullptr);
}

void watch_no_signals() {
  for (const int number : {SIGILL, SIGSEGV, SIGBUS}) signal(number, SIG_DFL);
}

// Calls it; says which signal it raised (0: none), its code, its address and where it was raised.
void attempt(void (*function)(const uint64_t*), const uint64_t* registers, uint64_t* said) {
  std::memset(seen, 0, sizeof seen);
  watching = true;
  if (sigsetjmp(back, 1) == 0) function(registers);
  watching = false;
  std::memcpy(said, seen, sizeof seen);
}

// A handler on top of what is there, which it calls; and how often it did.
void nest_on_top() { handle(SIGILL, on_top, &outer); }
int times_nested() { return nested; }
}
