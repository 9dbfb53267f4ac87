#include <nccl.h>
#include <stdlib.h>

#include "comm/nccl/communicator.h"
#include "comm/nccl/nccl.h"
#include "core/error.h"

namespace shoal::nccl {
namespace {

std::string version() {
  int code = 0;
  ncclGetVersion(&code);
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace
}  // namespace shoal::nccl

extern "C" __attribute__((visibility("default"))) const shoal::nccl::Library* shoal_nccl_library();
extern "C" const shoal::nccl::Library* shoal_nccl_library() {
  using namespace shoal;
  static constexpr nccl::Library kLibrary{nccl::make_communicator, nccl::version};
  // Switches that add up (NVLink SHARP) do so in an order of their own: a run would not repeat its bits.
  ::setenv("NCCL_NVLS_ENABLE", "0", 0);
  return &kLibrary;
}
