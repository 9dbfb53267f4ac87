// The CUDA backend from outside: nothing here needs CUDA's headers or libraries. It is a module,
// libshoal_cuda.so, that is built with -DSHOAL_CUDA=ON and loaded when it is first asked for.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace shoal {

struct CudaOptions {
  int device = 0;  // beyond the last one they are counted again from the first
  // Products of float32 on tensor cores, which round the operands to 10 bits of mantissa.
  bool tf32 = false;
  // Products of a new shape are timed with several of cuBLASLt's algorithms, and with and without what
  // follows them, when the shape is first used; otherwise cuBLASLt's own first choice is taken.
  bool tune = true;
  // Where what was chosen is kept, for all processes that use GPUs of this kind; without a folder it holds
  // for all backends of the process.
  std::string choices = {};
  // Attention by tensor cores where the sizes allow, otherwise always by the plain kernels.
  bool fast_attention = true;
};

struct CudaDevice {
  std::string name;
  std::size_t bytes = 0;     // of memory
  int major = 0, minor = 0;  // compute capability
};

// Whether there is the module; the environment variable SHOAL_CUDA_MODULE names another.
bool has_cuda_module();
// Throws UserError where there is no module, no GPU, or a driver that is too old.
std::unique_ptr<Backend> make_cuda_backend(const CudaOptions& options = {});
// Why make_cuda_backend would throw, in a sentence; empty where it would not.
std::string no_cuda_device();
// In CUDA's order; none where make_cuda_backend would throw.
std::vector<CudaDevice> cuda_devices();
// CudaOptions::choices for all processes of the user, or empty where there is no place for it.
std::string cuda_choices_folder();
// Of the runtime, "13.0"; empty where the module cannot be loaded.
std::string cuda_version();

namespace cuda {

// The module, as the program sees it; it lives as long as the process.
struct Library {
  std::unique_ptr<Backend> (*make_backend)(const CudaOptions& options);
  std::vector<CudaDevice> (*devices)();
  std::string (*no_device)();
  std::string (*version)();
};

// What it exports.
inline constexpr const char* kModuleEntry = "shoal_cuda_library";
using ModuleEntry = const Library* (*)();

}  // namespace cuda
}  // namespace shoal
