#include <nccl.h>

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
  return &kLibrary;
}
