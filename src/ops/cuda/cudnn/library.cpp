#include "ops/cuda/cudnn/library.h"

#include <dlfcn.h>

#include "core/error.h"

namespace shoal::cuda::cudnn {
namespace {

// NVIDIA withdrew 9.10.0 and 9.10.1 for attention; older versions need a mask of other values.
constexpr std::size_t kOldest = 91002;

template <typename Function>
void find(void* file, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(file, name));
  if (!function) fail("cuDNN has no {}", name);
}

}  // namespace

Functions open_library(const char* file_name) {
  void* file = dlopen(file_name, RTLD_NOW | RTLD_LOCAL);
  if (!file) fail("{}", dlerror());
  Functions found{};
  find(file, "cudnnGetVersion", found.version);
  if (found.version() < kOldest) {
    fail("cuDNN {} is too old, {} is needed", version_text(found.version()), version_text(kOldest));
  }
  find(file, "cudnnGetLastErrorString", found.last_error);
  find(file, "cudnnCreate", found.create);
  find(file, "cudnnDestroy", found.destroy);
  find(file, "cudnnSetStream", found.set_stream);
  find(file, "cudnnBackendCreateDescriptor", found.create_descriptor);
  find(file, "cudnnBackendDestroyDescriptor", found.destroy_descriptor);
  find(file, "cudnnBackendSetAttribute", found.set_attribute);
  find(file, "cudnnBackendGetAttribute", found.get_attribute);
  find(file, "cudnnBackendFinalize", found.finalize);
  find(file, "cudnnBackendExecute", found.execute);
  return found;
}

void Functions::check(cudnnStatus_t status, const char* what) const {
  if (status == CUDNN_STATUS_SUCCESS) return;
  char text[1024] = "";
  last_error(text, sizeof text);
  fail("cuDNN {}: {} (status {})", what, text, static_cast<int>(status));
}

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

Descriptor::Descriptor(const Functions& functions, cudnnBackendDescriptorType_t type)
    : made_(nullptr, Deleter{&functions}) {
  cudnnBackendDescriptor_t made = nullptr;
  functions.check(functions.create_descriptor(type, &made), "makes no descriptor");
  made_.reset(made);
}

Descriptor& Descriptor::set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                                std::size_t count, const void* values) {
  functions().check(functions().set_attribute(raw(), name, type, static_cast<std::int64_t>(count), values),
                    "refuses an attribute");
  return *this;
}

Descriptor& Descriptor::set_all(cudnnBackendAttributeName_t name, std::span<const Descriptor> others) {
  std::vector<cudnnBackendDescriptor_t> raws;
  for (const auto& other : others) raws.push_back(other.raw());
  return set_raw(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, raws.size(), raws.data());
}

Descriptor& Descriptor::finalize() {
  functions().check(functions().finalize(raw()), "refuses a description");
  return *this;
}

std::int64_t Descriptor::get_integer(cudnnBackendAttributeName_t name) const {
  std::int64_t value = 0, count = 0;
  functions().check(functions().get_attribute(raw(), name, CUDNN_TYPE_INT64, 1, &count, &value),
                    "does not answer");
  return value;
}

std::vector<Descriptor> Descriptor::get_all(cudnnBackendAttributeName_t name,
                                            cudnnBackendDescriptorType_t type) const {
  const auto ask = [&](std::int64_t room, cudnnBackendDescriptor_t* to) {
    std::int64_t count = 0;
    functions().check(functions().get_attribute(raw(), name, CUDNN_TYPE_BACKEND_DESCRIPTOR, room, &count, to),
                      "does not answer");
    return count;
  };
  std::vector<Descriptor> made;
  std::vector<cudnnBackendDescriptor_t> raws;
  for (auto left = ask(0, nullptr); left > 0; --left) {
    raws.push_back(made.emplace_back(functions(), type).raw());
  }
  const auto filled = raws.empty() ? 0 : ask(std::ssize(raws), raws.data());
  while (std::ssize(made) > filled) made.pop_back();
  return made;
}

}  // namespace shoal::cuda::cudnn
