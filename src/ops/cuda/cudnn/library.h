// cuDNN at run time: opened, not linked, so that the backend starts without it.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

namespace shoal::cuda::cudnn {

// The functions of libcudnn.so.9 that are used here.
struct Functions {
  decltype(&cudnnGetVersion) version;
  decltype(&cudnnGetLastErrorString) last_error;
  decltype(&cudnnCreate) create;
  decltype(&cudnnDestroy) destroy;
  decltype(&cudnnSetStream) set_stream;
  decltype(&cudnnBackendCreateDescriptor) create_descriptor;
  decltype(&cudnnBackendDestroyDescriptor) destroy_descriptor;
  decltype(&cudnnBackendSetAttribute) set_attribute;
  decltype(&cudnnBackendGetAttribute) get_attribute;
  decltype(&cudnnBackendFinalize) finalize;
  decltype(&cudnnBackendExecute) execute;

  // Throws Error with the library's own words.
  void check(cudnnStatus_t status, const char* what) const;
};

// Throws Error if there is no such file, or its version is too old.
Functions open_library(const char* file = "libcudnn.so.9");
std::string version_text(std::size_t version);  // "9.19.0"

template <typename T>
consteval cudnnBackendAttributeType_t attribute_type() {
  if constexpr (std::is_same_v<T, std::int64_t>) return CUDNN_TYPE_INT64;
  if constexpr (std::is_same_v<T, bool>) return CUDNN_TYPE_BOOLEAN;
  if constexpr (std::is_same_v<T, char>) return CUDNN_TYPE_CHAR;
  if constexpr (std::is_same_v<T, void*>) return CUDNN_TYPE_VOID_PTR;
  if constexpr (std::is_same_v<T, cudnnHandle_t>) return CUDNN_TYPE_HANDLE;
  if constexpr (std::is_same_v<T, cudnnDataType_t>) return CUDNN_TYPE_DATA_TYPE;
  if constexpr (std::is_same_v<T, cudnnPointwiseMode_t>) return CUDNN_TYPE_POINTWISE_MODE;
  if constexpr (std::is_same_v<T, cudnnReduceTensorOp_t>) return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
  if constexpr (std::is_same_v<T, cudnnBackendHeurMode_t>) return CUDNN_TYPE_HEUR_MODE;
}

// An object of cuDNN's graph API: created, given its attributes, finalized. Everything throws Error.
class Descriptor {
 public:
  Descriptor(const Functions& functions, cudnnBackendDescriptorType_t type);

  template <typename T>
  Descriptor& set(cudnnBackendAttributeName_t name, const T& value) {
    return set_all(name, std::span(&value, 1));
  }
  template <typename T>
  Descriptor& set_all(cudnnBackendAttributeName_t name, std::span<const T> values) {
    return set_raw(name, attribute_type<T>(), values.size(), values.data());
  }
  Descriptor& set_all(cudnnBackendAttributeName_t name, std::span<const Descriptor> others);
  Descriptor& finalize();

  std::int64_t get_integer(cudnnBackendAttributeName_t name) const;
  std::vector<Descriptor> get_all(cudnnBackendAttributeName_t name, cudnnBackendDescriptorType_t type) const;
  cudnnBackendDescriptor_t raw() const { return made_.get(); }

 private:
  struct Deleter {
    const Functions* functions;
    void operator()(void* made) const { functions->destroy_descriptor(made); }
  };

  const Functions& functions() const { return *made_.get_deleter().functions; }
  Descriptor& set_raw(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, std::size_t count,
                      const void* values);

  std::unique_ptr<void, Deleter> made_;
};

}  // namespace shoal::cuda::cudnn
