// Tensors for tests: `Buffer` owns its memory, and `Side` is a backend with the types of its tensors.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <valarray>
#include <vector>

#include "core/philox.h"
#include "ops/kernels.h"

namespace shoal::test {

// The elements of a tensor of any type, as doubles.
using Values = std::valarray<double>;

// The value rounded to `type`.
inline double rounded(double value, DType type) {
  switch (type) {
    case DType::f32:
      return static_cast<float>(value);
    case DType::bf16:
      return to_float(to_bfloat16(static_cast<float>(value)));
    case DType::i32:
      return static_cast<std::int32_t>(value);
    default:
      return value;
  }
}
inline Values rounded(Values values, DType type) {
  for (double& value : values) value = rounded(value, type);
  return values;
}

// Normal deviates, rounded to `type`. Different `which` give independent values.
inline Values normal_values(std::int64_t n, std::uint32_t which, DType type = DType::f32, double mean = 0,
                            double stddev = 1) {
  Values values(static_cast<std::size_t>(n));
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    values[i] = rounded(mean + stddev * to_normal(philox({which, 7}, {i, 0, 0, 0})), type);
  }
  return values;
}
// Integers in [0, bound).
inline Values random_integers(std::int64_t n, std::uint32_t which, std::int64_t bound) {
  Values values(static_cast<std::size_t>(n));
  for (std::uint32_t i = 0; i < values.size(); ++i) {
    values[i] =
        static_cast<double>(to_below(philox({which, 8}, {i, 0, 0, 0}), static_cast<std::uint64_t>(bound)));
  }
  return values;
}

class Buffer {
 public:
  Buffer(Backend& backend, DType type, Shape shape) : backend_(&backend), tensor_{nullptr, type, shape} {
    tensor_.data = backend.allocate(tensor_.bytes());
  }
  Buffer(Backend& backend, DType type, Shape shape, const Values& values) : Buffer(backend, type, shape) {
    assert(static_cast<std::int64_t>(values.size()) == shape.count());
    std::vector<std::byte> host(tensor_.bytes());
    for (std::size_t i = 0; i < values.size(); ++i) store(host.data() + i * size_of(type), values[i]);
    backend.copy_from_host(tensor_, host.data());
  }
  Buffer(Buffer&& other) noexcept : backend_(other.backend_), tensor_(std::exchange(other.tensor_, {})) {}
  Buffer& operator=(Buffer&&) = delete;
  ~Buffer() {
    if (tensor_) backend_->release(tensor_.data, tensor_.bytes());
  }

  operator const Tensor&() const { return tensor_; }

  std::vector<std::byte> bytes() const {
    std::vector<std::byte> host(tensor_.bytes());
    backend_->synchronize();
    backend_->copy_to_host(host.data(), tensor_);
    return host;
  }
  Values values() const {
    const auto host = bytes();
    Values values(static_cast<std::size_t>(tensor_.count()));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = load(host.data() + i * size_of(tensor_.dtype));
    return values;
  }

 private:
  template <typename T>
  static void put(std::byte* to, T value) {
    std::memcpy(to, &value, sizeof(T));
  }
  template <typename T>
  static T get(const std::byte* from) {
    T value;
    std::memcpy(&value, from, sizeof(T));
    return value;
  }
  void store(std::byte* to, double value) const {
    switch (tensor_.dtype) {
      case DType::f64:
        return put(to, value);
      case DType::f32:
        return put(to, static_cast<float>(value));
      case DType::bf16:
        return put(to, to_bfloat16(static_cast<float>(value)));
      case DType::i32:
        return put(to, static_cast<std::int32_t>(value));
      case DType::i8:
        return put(to, static_cast<std::int8_t>(value));
      case DType::f16:
        return;
    }
  }
  double load(const std::byte* from) const {
    switch (tensor_.dtype) {
      case DType::f64:
        return get<double>(from);
      case DType::f32:
        return get<float>(from);
      case DType::bf16:
        return to_float(get<bfloat16>(from));
      case DType::i32:
        return get<std::int32_t>(from);
      case DType::i8:
        return get<std::int8_t>(from);
      case DType::f16:
        break;
    }
    return 0;
  }

  Backend* backend_;
  Tensor tensor_;
};

// A value of type T in a backend's memory; its size is a multiple of 32 bits.
template <typename T>
class Scalar {
 public:
  Scalar(Backend& backend, const T& value)
      : backend_(&backend), memory_(backend, DType::i32, {sizeof(T) / sizeof(std::int32_t)}) {
    set(value);
  }
  void set(const T& value) { backend_->copy_from_host(memory_, &value); }
  const T* get() const { return static_cast<const Tensor&>(memory_).as<const T>(); }

 private:
  Backend* backend_;
  Buffer memory_;
};

// The types of the computation and of the residual stream.
struct Types {
  DType compute, stream;
  std::string name() const {
    return stream == DType::bf16 ? "bfloat16_stream" : std::string(name_of(compute));
  }
};
inline constexpr Types kTypes[] = {
    {DType::f32, DType::f32}, {DType::bf16, DType::f32}, {DType::bf16, DType::bf16}};

// A backend, its compute type (of products and activations), its full type (float32 in ops/kernels.h) and
// that of its residual stream. The oracle is the reference backend with all types float64, so that its
// results are not rounded to narrower types.
struct Side {
  Backend& backend;
  DType compute_type;
  DType full_type = DType::f32;
  DType stream_type = full_type;

  static constexpr std::uint32_t kStep = 12;
  std::shared_ptr<Scalar<std::uint32_t>> step = std::make_shared<Scalar<std::uint32_t>>(backend, kStep);

  // The same dropout, with the step kStep in this backend's memory.
  Dropout at_step(Dropout dropout) const {
    dropout.step = step->get();
    return dropout;
  }
  Buffer compute(Shape shape) const { return {backend, compute_type, shape}; }
  Buffer compute(Shape shape, const Values& values) const { return {backend, compute_type, shape, values}; }
  Buffer full(Shape shape) const { return {backend, full_type, shape}; }
  Buffer full(Shape shape, const Values& values) const { return {backend, full_type, shape, values}; }
  Buffer stream(Shape shape) const { return {backend, stream_type, shape}; }
  Buffer stream(Shape shape, const Values& values) const { return {backend, stream_type, shape, values}; }
  Buffer ints(Shape shape) const { return {backend, DType::i32, shape}; }
  Buffer ints(Shape shape, const Values& values) const { return {backend, DType::i32, shape, values}; }
};

}  // namespace shoal::test
