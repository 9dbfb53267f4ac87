// With SHOAL_EMULATED_LOG=FILE, what the emulated GPU is asked for is appended to this file, a line each:
//   launch KERNEL gx gy gz THREADS SHARED ASKED    mangled; dynamic shared memory, and how much was asked
//   for, or 0 read NUMBER BYTES HASH                         a copy to the host, by its number among them
#pragma once

#include <cstddef>

#include "ops/cuda/emulated/block.h"

namespace shoal::emulated {

bool logs();
void log_launch(const Launch& launch, std::size_t asked);
// The number of the next copy to the host.
int next_read();
void log_read(int number, const void* data, std::size_t bytes);

}  // namespace shoal::emulated
