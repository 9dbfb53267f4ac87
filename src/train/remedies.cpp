#include "train/backend_errors.h"

#include "core/error.h"
#include "ops/errors.h"
#include "parallel/backend_ranks.h"

namespace shoal {

void rethrow_with_keys() {
  try {
    throw;
  } catch (const CudaUnavailable& error) {
    fail_user("train.backend = \"cuda\" cannot be used: {}; \"cpu\" reads and writes the same checkpoints",
              error.what());
  } catch (const NcclUnavailable& error) {
    fail_user(
        "parallel.gpu_exchange = \"nccl\" cannot be used: {}; \"auto\" then goes through the host's memory",
        error.what());
  } catch (const OutOfDeviceMemory& error) {
    fail("{}; a smaller train.micro_batch, train.recompute or parallel.offload needs less", error.what());
  } catch (const OutOfPinnedMemory& error) {
    fail_user(
        "{}; where that is for parallel.offload, shard it over more ranks (parallel.zero), or set "
        "parallel.offload = \"disk\", which pins little",
        error.what());
  }
}

}  // namespace shoal
