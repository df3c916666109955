// Scratch memory of a kernel, 64-byte aligned, kept from call to call and grown when a call needs more. What it holds on
// entry is arbitrary. `of_call` belongs to the thread that called the kernel: shared by the loop bodies of that call, which
// receive the pointer. `of_thread` belongs to the thread that runs a loop body. A later request of the same kind in the same
// thread may move it: ask once.
#pragma once

#include <cstdint>

namespace kernelpair {

enum class Workspace { of_call, of_thread };

char* workspace(Workspace kind, int64_t bytes);

}  // namespace kernelpair
