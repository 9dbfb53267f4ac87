// Faults of the emulated GPU. As with CUDA, the first one stays: every later call returns its status.
#pragma once

#include <driver_types.h>

#include <functional>
#include <string>

namespace shoal::emulated {

// Prints the message, unless there was a fault before.
void fail(cudaError_t status, const std::string& message);
// cudaSuccess without a fault.
cudaError_t failure();
const char* failure_message();

// Runs work of the host in the GPU's name, such as a copy. Faults of memory in it are failures.
void run_guarded(const char* name, const std::function<void()>& work);
// A fault of memory in a kernel: `describe` says where, and `leave` jumps out of the kernel.
void set_kernel_of_thread(std::function<std::string()> describe, void (*leave)());

}  // namespace shoal::emulated
