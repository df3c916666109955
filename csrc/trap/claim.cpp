#include "trap/claim.h"

#include <cpuid.h>
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>

namespace kernelpair::trap {
namespace {

constexpr uint8_t kCpuid[2] = {0x0f, 0xa2}, kUd2[2] = {0x0f, 0x0b};
constexpr int kGetCpuid = 0x1011, kSetCpuid = 0x1012;  // of arch_prctl: 0 where CPUID faults, else 1
constexpr int kXstateFirst = 0x1021, kXstateLast = 0x1025;
constexpr int kAskPermission = 0x1023, kAskGuestPermission = 0x1025;
constexpr uint32_t kTileStates = 1u << 17 | 1u << 18;  // of XCR0: configuration, data
constexpr uint32_t kConfigBytes = 64, kDataBytes = 8192, kConfigAt = 2752, kDataAt = 2816;
constexpr uint32_t kPalettes = 1, kTileCount = 8, kTileBytes = 1024, kTileRowBytes = 64, kTileRows = 16;
constexpr size_t kMostPlaces = 4096;

bool half_too = false;
uint8_t* replaced[kMostPlaces];  // ascending up to replaced_count
std::atomic<size_t> replaced_count{0};

CpuidAnswer ask(uint32_t leaf, uint32_t subleaf) {
  CpuidAnswer real;
  __cpuid_count(leaf, subleaf, real.eax, real.ebx, real.ecx, real.edx);
  return real;
}

void put(greg_t* registers, const CpuidAnswer& answer) {
  registers[REG_RAX] = answer.eax;
  registers[REG_RBX] = answer.ebx;
  registers[REG_RCX] = answer.ecx;
  registers[REG_RDX] = answer.edx;
  registers[REG_RIP] += sizeof kCpuid;
}

bool stands_at(const uint8_t* place, const uint8_t (&code)[2]) {
  return place[0] == code[0] && place[1] == code[1];
}

uint32_t asked_leaf(const greg_t* registers) { return static_cast<uint32_t>(registers[REG_RAX]); }
uint32_t asked_subleaf(const greg_t* registers) { return static_cast<uint32_t>(registers[REG_RCX]); }

int set_cpuid(int works) { return syscall(SYS_arch_prctl, kSetCpuid, works) ? errno : 0; }

// The kernel's questions about extended states, answered as if the tiles' were granted. The arguments lie in the
// registers of the call, the answer goes where the kernel would put it.
void on_system_call(int, siginfo_t*, void* context) {
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto code = static_cast<int>(registers[REG_RDI]);
  if (code == kAskPermission || code == kAskGuestPermission) {
    registers[REG_RAX] = registers[REG_RSI] == 18 ? 0 : -EINVAL;
    return;
  }
  const CpuidAnswer states = with_tiles(0xd, 0, ask(0xd, 0), false);
  *reinterpret_cast<uint64_t*>(registers[REG_RSI]) = static_cast<uint64_t>(states.edx) << 32 | states.eax;
  registers[REG_RAX] = 0;
}

// arch_prctl of these codes raises SIGSYS; every other call passes.
int filter_system_calls() {
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 0, 5),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_arch_prctl, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, kXstateFirst, 0, 1),
      BPF_JUMP(BPF_JMP | BPF_JGT | BPF_K, kXstateLast, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  };
  const sock_fprog program = {sizeof code / sizeof *code, code};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return errno;
  return prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) ? errno : 0;
}

// Writes two bytes of code. The page stays executable meanwhile: another thread may run what is beside them.
int write_code(uint8_t* place, const uint8_t (&code)[2]) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = reinterpret_cast<uintptr_t>(place) & ~(page - 1);
  const size_t bytes = reinterpret_cast<uintptr_t>(place) + sizeof code - first;
  void* begin = reinterpret_cast<void*>(first);
  if (mprotect(begin, bytes, PROT_READ | PROT_WRITE | PROT_EXEC)) return errno;
  std::copy(code, code + sizeof code, place);
  return mprotect(begin, bytes, PROT_READ | PROT_EXEC) ? errno : 0;
}

}  // namespace

CpuidAnswer with_tiles(uint32_t leaf, uint32_t subleaf, CpuidAnswer real, bool half) {
  switch (leaf) {
    case 0: real.eax = std::max(real.eax, 0x1eu); break;
    case 7:
      if (subleaf == 0)
        real.edx |= 1u << 22 | 1u << 24 | 1u << 25 | (half ? 1u << 23 : 0);  // bf16, tile, int8
      if (subleaf == 1 && half) real.eax |= 1u << 4;  // AVX-VNNI, which oneDNN asks for beside AVX512-FP16
      break;
    case 0xd:
      if (subleaf == 0) {
        real.eax |= kTileStates;
        real.ecx = std::max(real.ecx, kDataAt + kDataBytes);
      }
      if (subleaf == 17) real = {kConfigBytes, kConfigAt, 2, 0};
      if (subleaf == 18) real = {kDataBytes, kDataAt, 6, 0};
      break;
    case 0x1d:
      real = {};
      if (subleaf == 0) real.eax = kPalettes;
      if (subleaf == 1)
        real = {kTileBytes << 16 | kTileCount * kTileBytes, kTileCount << 16 | kTileRowBytes, kTileRows, 0};
      break;
    case 0x1e: real = {0, subleaf == 0 ? kTileRowBytes << 8 | kTileRows : 0, 0, 0}; break;
    default: break;
  }
  return real;
}

bool answer_replaced(greg_t* registers) {
  auto* at = reinterpret_cast<uint8_t*>(registers[REG_RIP]);
  const size_t count = replaced_count.load(std::memory_order_acquire);
  if (!count || !std::binary_search(replaced, replaced + count, at)) return false;
  const uint32_t leaf = asked_leaf(registers), subleaf = asked_subleaf(registers);
  put(registers, with_tiles(leaf, subleaf, ask(leaf, subleaf), half_too));
  return true;
}

bool answer_faulting(const siginfo_t& info, greg_t* registers) {
  if (info.si_code != SI_KERNEL || !stands_at(reinterpret_cast<uint8_t*>(registers[REG_RIP]), kCpuid))
    return false;
  const uint32_t leaf = asked_leaf(registers), subleaf = asked_subleaf(registers);
  set_cpuid(1);
  const CpuidAnswer real = ask(leaf, subleaf);
  set_cpuid(0);
  put(registers, with_tiles(leaf, subleaf, real, half_too));
  return true;
}

void tell_missing(const uint8_t* code) {
  constexpr char says[] = "an instruction of AVX512-FP16, which this CPU lacks and was said to have\n";
  const int map = code[1] & 7;
  if (half_too && code[0] == 0x62 && (map == 5 || map == 6)) (void)!write(2, says, sizeof says - 1);
}

}  // namespace kernelpair::trap

using namespace kernelpair::trap;

// Set to what it is: it may fault already.
int kernelpair_trap_cpuid_faults() { return set_cpuid(syscall(SYS_arch_prctl, kGetCpuid, 0) != 0); }

int kernelpair_trap_claim(int faulting, int half) {
  struct sigaction ours = {};
  ours.sa_sigaction = on_system_call;
  ours.sa_flags = SA_SIGINFO;
  half_too = half;
  if (sigaction(SIGSYS, &ours, nullptr)) return errno;
  if (const int failed = filter_system_calls()) return failed;
  return faulting ? set_cpuid(0) : 0;
}

int kernelpair_trap_replace(uint8_t* const* places, size_t count) {
  const size_t before = replaced_count.load(std::memory_order_acquire);
  if (count > kMostPlaces - before) return ENOSPC;
  for (size_t i = 0; i < count; ++i)
    if (!stands_at(places[i], kCpuid)) return EINVAL;
  std::copy(places, places + count, replaced + before);
  std::sort(replaced, replaced + before + count);
  replaced_count.store(before + count, std::memory_order_release);
  for (size_t i = 0; i < count; ++i)
    if (const int failed = write_code(places[i], kUd2)) return failed;
  return 0;
}

void kernelpair_trap_cpuid(uint32_t leaf, uint32_t subleaf, int half, uint32_t* registers) {
  const CpuidAnswer real = {registers[0], registers[1], registers[2], registers[3]};
  const CpuidAnswer other = with_tiles(leaf, subleaf, real, half);
  const uint32_t answer[4] = {other.eax, other.ebx, other.ecx, other.edx};
  std::copy(answer, answer + 4, registers + 4);
}
