// The fixture of the conformance tests: the backend under test on one side, the oracle in double on the
// other. The tests are compiled once, and linked with what under_test.h declares of the cpu backend and, in
// another program, of the cuda backend.
#pragma once

#include <string>

#include "ops/buffer.h"
#include "ops/reference/reference.h"
#include "ops/tolerance.h"
#include "ops/under_test.h"

namespace shoal::test {

// cuBLASLt rounds the sums of a product before it adds the bias where rows of bfloat16 are not multiples of
// 16 bytes (seen on an H200). Sums are at most |result| + |bias|.
inline Values rounding_before_bias(const Values& result, const Values& bias, DType type, std::int64_t K,
                                   std::int64_t N) {
  if (kBiasAfterRounding && type == DType::bf16 && (K % 8 != 0 || N % 8 != 0)) {
    return storage(std::abs(result) + std::abs(bias).max(), type);
  }
  return Values(0.0, result.size());
}

template <typename Param>
class Conformance : public testing::TestWithParam<Param> {
 protected:
  // The backend under test.
  Side cpu(DType compute_type = DType::f32) const { return {*cpu_, compute_type}; }
  Side cpu(const Types& types) const { return {*cpu_, types.compute, DType::f32, types.stream}; }
  Side oracle() const { return {*oracle_, DType::f64, DType::f64}; }

 private:
  std::shared_ptr<Backend> cpu_ = backend_under_test(2);
  std::unique_ptr<Backend> oracle_ = make_reference_backend();
};

inline const auto kComputeTypes = testing::Values(DType::f32, DType::bf16);

// Dropout of one tenth, in the middle of a global batch. Side::at_step() sets the step.
inline Dropout some_dropout(std::int64_t sequence) {
  return {.p = 0.1, .seed = 11, .site = 13, .window = {.first_sample = 5, .sequence = sequence}};
}

}  // namespace shoal::test

namespace shoal {
// Prints the parameters of failing tests, for GoogleTest.
inline void PrintTo(DType type, std::ostream* out) { *out << name_of(type); }
inline void PrintTo(const Shape& shape, std::ostream* out) { *out << shape.to_string(); }
namespace test {
inline void PrintTo(const Types& types, std::ostream* out) { *out << types.name(); }
}  // namespace test
}  // namespace shoal
