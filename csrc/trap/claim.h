// A CPU that says it has AMX: what CPUID answers there, and what the kernel says about permission.
//
// Somebody else's library asks both before it executes a tile instruction. CPUID is caught in one of two ways:
// the CPU faults on it (arch_prctl ARCH_SET_CPUID: SIGSEGV, with the code SI_KERNEL), or each CPUID of a library is
// replaced in memory by UD2, which has the same two bytes of room and raises SIGILL. The kernel's arch_prctl for
// extended states is caught by a filter of system calls (SIGSYS), whoever calls it and how.
#pragma once

#include <signal.h>
#include <ucontext.h>

#include <cstddef>
#include <cstdint>

#include "trap/trap.h"

namespace kernelpair::trap {

struct CpuidAnswer {
  uint32_t eax, ebx, ecx, edx;
};

// What a CPU that has AMX besides answers, given what this one does: leaves 0, 7, 0xD, 0x1D and 0x1E.
// `half`: it says AVX512-FP16 and AVX-VNNI too, which no CPU with AMX lacks.
CpuidAnswer with_tiles(uint32_t leaf, uint32_t subleaf, CpuidAnswer real, bool half);

// Carries out the CPUID that was trapped at RIP, if that is what it was: true, and RIP behind it.
bool answer_replaced(greg_t* registers);
bool answer_faulting(const siginfo_t& info, greg_t* registers);

// Says on stderr whose fault it is when an instruction of AVX512-FP16 ends the process that was told to have it.
void tell_missing(const uint8_t* code);

}  // namespace kernelpair::trap

extern "C" {

// Whether this CPU can fault on CPUID: 0, or the errno of the kernel's refusal.
KP_EXPORTED int kernelpair_trap_cpuid_faults();
// From now on this process is told that it has AMX: 0 or an errno. After kernelpair_trap_install. `faulting`: CPUID
// faults, in this thread and in those that it will start. `half` as above.
KP_EXPORTED int kernelpair_trap_claim(int faulting, int half);
// Replaces the CPUID at each address; EINVAL, and nothing is changed, if one of them holds another instruction.
KP_EXPORTED int kernelpair_trap_replace(uint8_t* const* places, size_t count);
// What with_tiles says: registers is eax, ebx, ecx, edx of this CPU, then of the other.
KP_EXPORTED void kernelpair_trap_cpuid(uint32_t leaf, uint32_t subleaf, int half, uint32_t* registers);
}
