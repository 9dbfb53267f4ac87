// Ops on shards of a parameter give every element the same bits wherever a shard begins and ends, and on any
// number of threads: the bodies and the tails of vector loops do the same arithmetic.
#include <functional>

#include "core/hash.h"
#include "ops/conformance.h"

namespace shoal::test {
namespace {

using Bytes = std::vector<std::byte>;

constexpr std::int64_t kSize = 140003;  // several blocks of any op
// Shards between neighbouring cuts: shorter than a vector, whole vectors at odd offsets, odd lengths from
// vector borders, and across the borders of the threads' blocks.
constexpr std::int64_t kCuts[] = {0,    1,    2,    5,     16,    17,    33,    48,     64,   79,
                                  1024, 1040, 2047, 16384, 16400, 33333, 65537, 131072, kSize};

Tensor part(const Tensor& whole, std::int64_t first, std::int64_t count) {
  return {
      whole.as<std::byte>() + static_cast<std::size_t>(first) * size_of(whole.dtype), whole.dtype, {count}};
}

// Runs op(first, count) on the whole range at once and then on shards.
class CpuShards : public testing::TestWithParam<DType> {
 protected:
  using Op = std::function<void(std::int64_t first, std::int64_t count)>;
  // Makes buffers, runs an op on them through `cut`, and returns the results.
  using Run = std::function<std::vector<Bytes>(const Side&, const std::function<void(const Op&)>& cut)>;

  void expect_same_bits(const Run& run) const {
    const auto one = backend_under_test(1), two = backend_under_test(2);
    const auto whole = run({*one, GetParam()}, [](const Op& op) { op(0, kSize); });
    const auto shards = run({*two, GetParam()}, [](const Op& op) {
      for (std::size_t i = 0; i + 1 < std::size(kCuts); ++i) op(kCuts[i], kCuts[i + 1] - kCuts[i]);
    });
    for (std::size_t i = 0; i < whole.size(); ++i) EXPECT_TRUE(whole[i] == shards[i]) << "output " << i;
  }
};

TEST_P(CpuShards, AdamW) {
  const Values deviation = normal_values(kSize, 3);
  for (const bool clipped : {false, true}) {
    expect_same_bits([&](const Side& side, const auto& cut) {
      const Buffer w = side.full({kSize}, normal_values(kSize, 1)),
                   m = side.full({kSize}, normal_values(kSize, 2)),
                   v = side.full({kSize}, deviation * deviation),
                   g = side.full({kSize}, normal_values(kSize, 4)), copy{side.backend, DType::bf16, {kSize}},
                   scale = side.full({1}, {0.3});
      const Scalar<AdamWScalars> scalars(side.backend, {0.01f, 0.271f, 0.142625f, 1});
      const AdamWSettings settings{
          .scalars = scalars.get(),
          .grad_scale = clipped ? static_cast<const Tensor&>(scale).as<const float>() : nullptr,
          .weight_decay = 0.1f};
      cut([&](std::int64_t first, std::int64_t count) {
        side.backend.adamw({.weights = part(w, first, count),
                            .compute = GetParam() == DType::bf16 ? part(copy, first, count) : Tensor{},
                            .m = part(m, first, count),
                            .v = part(v, first, count),
                            .grads = part(g, first, count)},
                           settings);
      });
      return std::vector{w.bytes(), m.bytes(), v.bytes(), copy.bytes()};
    });
  }
}

TEST_P(CpuShards, AddAndConvert) {
  expect_same_bits([&](const Side& side, const auto& cut) {
    const Buffer sums = side.full({kSize}, normal_values(kSize, 1)), back = side.full({kSize}),
                 x = side.compute({kSize}, normal_values(kSize, 2, GetParam())), copy = side.compute({kSize});
    cut([&](std::int64_t first, std::int64_t count) {
      side.backend.add(part(sums, first, count), part(x, first, count));
      side.backend.scale(part(sums, first, count), part(sums, first, count), 0.3f);
      side.backend.convert(part(copy, first, count), part(sums, first, count));
      side.backend.convert(part(back, first, count), part(copy, first, count));
    });
    return std::vector{sums.bytes(), copy.bytes(), back.bytes()};
  });
}

TEST_P(CpuShards, InitialValues) {
  expect_same_bits([&](const Side& side, const auto& cut) {
    const Buffer x = side.full({kSize});
    const std::int64_t begin = (std::int64_t{1} << 32) - 70001;  // odd, and across the border of 32 bits
    cut([&](std::int64_t first, std::int64_t count) {
      side.backend.fill_normal(part(x, first, count), 42, fnv1a("wte"), begin + first, 0.02);
    });
    return std::vector<Bytes>{x.bytes()};
  });
}

INSTANTIATE_TEST_SUITE_P(Types, CpuShards, kComputeTypes);

}  // namespace
}  // namespace shoal::test
