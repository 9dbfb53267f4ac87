// The calls of the system that a simulation takes over: locks, waits, threads and the clock go to the
// scheduler, changes of files below the disk's folder meet the faults and are told to the disk. The program's
// own definitions of these functions come before the system's, for the C++ library as well, so that the code
// under test needs no other layer.
#pragma once

#include "simulate/disk.h"
#include "simulate/faults.h"

namespace shoal::simulate {

// From now on, for the threads of a scheduler; null: no more.
void take_over_files(Disk* disk, Faults* faults);

}  // namespace shoal::simulate
