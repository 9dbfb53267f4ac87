#include "ops/cuda/emulated/failure.h"

#include <fmt/format.h>
#include <setjmp.h>
#include <signal.h>
#include <ucontext.h>

#include <cstdio>
#include <exception>
#include <mutex>
#include <utility>

#include "ops/cuda/emulated/memory.h"

namespace shoal::emulated {
namespace {

std::mutex of_failures;
cudaError_t first = cudaSuccess;
std::string first_message;

struct sigaction before;  // the handler of others

// The launch or copy that this thread runs for the GPU.
thread_local std::function<std::string()> kernel;
thread_local void (*leave_kernel)() = nullptr;
thread_local const char* host_work = nullptr;
thread_local jmp_buf after_host_work;

const char* verb(const void* context) {
#ifdef __x86_64__
  constexpr unsigned long kWrite = 2;
  const auto error = static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR];
  return (static_cast<unsigned long>(error) & kWrite) != 0 ? "writes" : "reads";
#else
  (void)context;
  return "accesses";
#endif
}

// The fault is one of the code that runs, not of code that it interrupts, so the handler may do what it
// likes.
void on_fault(int, siginfo_t* info, void* context) {
  if (leave_kernel) {
    fail(cudaErrorIllegalAddress, fmt::format("{} {} {}", kernel(), verb(context), describe(info->si_addr)));
    leave_kernel();
  }
  if (host_work) {
    fail(cudaErrorIllegalAddress, fmt::format("{} {} {}", host_work, verb(context), describe(info->si_addr)));
    _longjmp(after_host_work, 1);
  }
  std::fprintf(stderr, "the host %s %s\n", verb(context), describe(info->si_addr).c_str());
  sigaction(SIGSEGV, &before, nullptr);  // the access is repeated
}

void watch() {
  static const bool once = [] {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;  // the handler does not return
    return sigaction(SIGSEGV, &action, &before) == 0;
  }();
  (void)once;
}

}  // namespace

void fail(cudaError_t status, const std::string& message) {
  const std::lock_guard lock(of_failures);
  if (first != cudaSuccess) return;
  first = status;
  first_message = message;
  std::fprintf(stderr, "the emulated GPU failed: %s\n", message.c_str());
}

cudaError_t failure() {
  const std::lock_guard lock(of_failures);
  return first;
}

const char* failure_message() { return first_message.c_str(); }

void run_guarded(const char* name, const std::function<void()>& work) {
  watch();
  const char* outer = std::exchange(host_work, name);
  if (_setjmp(after_host_work) == 0) {
    try {
      work();
    } catch (const std::exception& error) {
      fail(cudaErrorLaunchFailure, fmt::format("{}: {}", name, error.what()));
    }
  }
  host_work = outer;
}

void set_kernel_of_thread(std::function<std::string()> describe, void (*leave)()) {
  watch();
  kernel = std::move(describe);
  leave_kernel = leave;
}

}  // namespace shoal::emulated
