#include "trap/trap.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>

#include "trap/claim.h"
#include "trap/tiles.h"

namespace kernelpair::trap {
namespace {

using Handler = void(int, siginfo_t*, void*);

struct sigaction before[NSIG];
pthread_key_t tiles_key;
std::atomic<uint64_t> loads, products, stores, zeros, configurations, releases, traps;

// Pointers, so that they lie in every thread's static block: neither handler may allocate. A crash inside of
// malloc is a crash and not a deadlock.
#define KP_STATIC_TLS static thread_local __attribute__((tls_model("initial-exec")))
KP_STATIC_TLS Tiles* own_tiles = nullptr;
KP_STATIC_TLS sigjmp_buf* memory_guard = nullptr;  // set while memory of the program is touched
KP_STATIC_TLS siginfo_t* memory_fault = nullptr;   // where to say what happened there
KP_STATIC_TLS char* handing_on = nullptr;          // the frame of the hand_on that has not come back
KP_STATIC_TLS int handed_on = 0;                   // how many of them are below each other

constexpr int kMostHandedOn = 16;  // two handlers that call each other; nobody nests them on purpose

Tiles* tiles_of_thread() {
  if (!own_tiles) {
    void* block = mmap(nullptr, sizeof(Tiles), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (block == MAP_FAILED) return nullptr;
    own_tiles = static_cast<Tiles*>(block);
    pthread_setspecific(tiles_key, block);  // to be given back when the thread ends
  }
  return own_tiles;
}

void give_back(void* block) {
  own_tiles = nullptr;
  munmap(block, sizeof(Tiles));
}

// Raised when the handler returns, at the instruction that it was called for.
void raise_at_program(int number, const siginfo_t& info) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, number);
  pthread_sigmask(SIG_BLOCK, &one, nullptr);  // sigreturn unblocks it
  siginfo_t copy = info;
  syscall(SYS_rt_tgsigqueueinfo, getpid(), gettid(), number, &copy);
}

siginfo_t protection() {
  siginfo_t info = {};
  info.si_signo = SIGSEGV;
  info.si_code = SI_KERNEL;
  return info;
}

// Whether this is a call from within itself, over and over. A handler may also leave by a jump: then the next
// call is not below the last one.
bool going_round(char* frame) {
  handed_on = handing_on && frame < handing_on ? handed_on + 1 : 0;
  handing_on = frame;
  return handed_on > kMostHandedOn;
}

// The signals that are blocked while `other` runs, as if the system had called it.
void block_for(const struct sigaction& other, int number, const ucontext_t& context) {
  sigset_t blocked;
  sigorset(&blocked, &context.uc_sigmask, &other.sa_mask);
  if (!(other.sa_flags & SA_NODEFER)) sigaddset(&blocked, number);
  pthread_sigmask(SIG_SETMASK, &blocked, nullptr);
}

// To whoever had the signal before; what nobody handles ends the process as if we had never been here.
void hand_on(int number, siginfo_t* info, void* context) {
  char frame;
  const struct sigaction other = before[number];
  if (going_round(&frame) || other.sa_handler == SIG_DFL || other.sa_handler == SIG_IGN) {
    signal(number, SIG_DFL);
    raise_at_program(number, *info);
  } else {
    block_for(other, number, *static_cast<ucontext_t*>(context));
    if (other.sa_flags & static_cast<int>(SA_RESETHAND)) before[number].sa_handler = SIG_DFL;
    if (other.sa_flags & SA_SIGINFO)
      other.sa_sigaction(number, info, context);
    else
      other.sa_handler(number);
  }
  handing_on = nullptr;
}

void count(Kind kind) {
  const auto one_more = [](std::atomic<uint64_t>& total) { total.fetch_add(1, std::memory_order_relaxed); };
  switch (kind) {
    case Kind::load: return one_more(loads);
    case Kind::store: return one_more(stores);
    case Kind::zero: return one_more(zeros);
    case Kind::load_config: return one_more(configurations);
    case Kind::release: return one_more(releases);
    case Kind::none:
    case Kind::store_config: return;
    default: return one_more(products);
  }
}

// Carries out the tile instructions in a row from RIP on, and says what ended the row.
Outcome run(greg_t* registers, Tiles& tiles) {
  for (;;) {
    const Instruction next = decode(reinterpret_cast<const uint8_t*>(registers[REG_RIP]), registers);
    const Outcome outcome = carry_out(next, tiles);
    if (outcome != Outcome::done) return outcome;
    count(next.kind);
    registers[REG_RIP] += next.length;
  }
}

void on_illegal(int number, siginfo_t* info, void* context) {
  const int saved_errno = errno;
  greg_t* registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  if (answer_replaced(registers)) return;
  const greg_t start = registers[REG_RIP];
  Tiles* tiles = tiles_of_thread();
  sigjmp_buf guard;
  siginfo_t where = {};  // of no signal
  Outcome outcome = Outcome::undefined;
  if (tiles && sigsetjmp(guard, 0) == 0) {
    memory_fault = &where;
    memory_guard = &guard;
    outcome = run(registers, *tiles);
  }
  memory_guard = nullptr;
  if (registers[REG_RIP] != start)
    traps.fetch_add(1, std::memory_order_relaxed);  // whatever is wrong with the next one traps again
  else if (where.si_signo)
    raise_at_program(where.si_signo, where);
  else if (outcome == Outcome::protection)
    raise_at_program(SIGSEGV, protection());
  else {
    tell_missing(reinterpret_cast<const uint8_t*>(start));
    hand_on(number, info, context);
  }
  errno = saved_errno;
}

void on_memory(int number, siginfo_t* info, void* context) {
  if (memory_guard) {
    *memory_fault = *info;
    siglongjmp(*memory_guard, 1);
  }
  if (number == SIGSEGV && answer_faulting(*info, static_cast<ucontext_t*>(context)->uc_mcontext.gregs))
    return;
  hand_on(number, info, context);
}

// `undisturbed`: no signal that comes from outside interrupts the handler.
int take(int number, Handler* handler, int flags, bool undisturbed) {
  struct sigaction now = {}, ours = {};
  if (sigaction(number, nullptr, &now)) return errno;
  if ((now.sa_flags & SA_SIGINFO) && now.sa_sigaction == handler) return 0;
  ours.sa_sigaction = handler;
  ours.sa_flags = SA_SIGINFO | SA_NODEFER | flags;
  if (undisturbed) {
    sigfillset(&ours.sa_mask);
    for (const int own : {SIGILL, SIGSEGV, SIGBUS, SIGFPE, SIGTRAP}) sigdelset(&ours.sa_mask, own);
  }
  before[number] = now;
  return sigaction(number, &ours, nullptr) ? errno : 0;
}

}  // namespace
}  // namespace kernelpair::trap

using namespace kernelpair::trap;

int kernelpair_trap_install() {
  static const int no_key = pthread_key_create(&tiles_key, give_back);
  if (no_key) return no_key;
  // A stack overflow is told on the alternate stack, if there is one; a tile instruction has its thread's
  // own, where a frame with all vector registers fits.
  for (const int number : {SIGSEGV, SIGBUS})
    if (const int failed = take(number, on_memory, SA_ONSTACK, false)) return failed;
  return take(SIGILL, on_illegal, 0, true);
}

void kernelpair_trap_counts(kernelpair_trap_totals* totals) {
  *totals = {loads, products, stores, zeros, configurations, releases, traps};
}

void kernelpair_trap_reset() {
  for (auto* total : {&loads, &products, &stores, &zeros, &configurations, &releases, &traps}) *total = 0;
}
