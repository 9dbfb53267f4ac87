// A file of its own: a compiler that saw these bodies would keep in registers what others change meanwhile.
#include "ops/cuda/emulated/places.h"

#include <ucontext.h>

namespace shoal::emulated {

void begin_on(std::byte* stack, std::size_t bytes, void (*run)(), Place& from) {
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = stack;
  context.uc_stack.ss_size = bytes;
  context.uc_link = nullptr;
  makecontext(&context, run, 0);
  if (__builtin_setjmp(from) == 0) setcontext(&context);
}

void go_on_at(Place& to, Place& from) {
  if (__builtin_setjmp(from) == 0) go_on_at(to);
}

// The built-in pair must not be in one function.
[[gnu::noinline]] void go_on_at(Place& to) { __builtin_longjmp(to, 1); }

}  // namespace shoal::emulated
