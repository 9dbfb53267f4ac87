// Generation relies on this: a row of a product with up to eight rows has the same bits in any place,
// whatever the other rows hold and however many they are. The own product of bfloat16 promises it for more.
#include "ops/conformance.h"
#include "ops/cpu/cpu.h"

namespace shoal::test {
namespace {

TEST(CpuRows, OfAProductDoNotDependOnTheOthers) {
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{768, 768},
                             {768, 3072},
                             {1000, 768},
                             {72, 24},
                             {96, 24},
                             {24, 96},
                             {50, 4200},
                             {105, 35}}) {
    for (const auto type : {DType::f32, DType::bf16}) {
      for (const int threads : {1, 3}) {
        const auto backend = make_cpu_backend(threads);
        const Buffer w{*backend, type, {n, k}, normal_values(n * k, 1, type)};
        const Values row = normal_values(k, 2, type);
        Values first;
        for (std::int64_t rows = 1; rows <= 8; ++rows) {
          for (std::int64_t at = 0; at < rows; ++at) {
            Values all = normal_values(rows * k, 3 + static_cast<std::uint32_t>(at), type);
            all[std::slice(static_cast<std::size_t>(at * k), static_cast<std::size_t>(k), 1)] = row;
            const Buffer x{*backend, type, {rows, k}, all}, y{*backend, DType::f32, {rows, n}};
            backend->linear_forward(y, x, w, {});
            const Values here =
                y.values()[std::slice(static_cast<std::size_t>(at * n), static_cast<std::size_t>(n), 1)];
            if (rows == 1) first = here;
            ASSERT_TRUE((here == first).min())
                << n << " x " << k << ", " << name_of(type) << ", row " << at << " of " << rows;
          }
        }
      }
    }
  }
}

TEST(CpuRows, OfALargeProductInBfloat16DoNotDependOnTheOthers) {
  constexpr std::int64_t kRows = 500, kColumns = 130, kDepth = 2500;
  const auto backend = make_cpu_backend(2);
  const Values x = normal_values(kRows * kDepth, 1, DType::bf16);
  const Buffer w{*backend, DType::bf16, {kColumns, kDepth}, normal_values(kColumns * kDepth, 2, DType::bf16)};
  const auto product = [&](std::int64_t first, std::int64_t rows) {
    const Values part =
        x[std::slice(static_cast<std::size_t>(first * kDepth), static_cast<std::size_t>(rows * kDepth), 1)];
    const Buffer y{*backend, DType::f32, {rows, kColumns}};
    backend->linear_forward(y, Buffer{*backend, DType::bf16, {rows, kDepth}, part}, w, {});
    return y.values();
  };
  const Values whole = product(0, kRows);
  for (const auto& [first, rows] : {std::pair<std::int64_t, std::int64_t>{0, 9}, {1, 100}, {77, 423}}) {
    const Values expected = whole[std::slice(static_cast<std::size_t>(first * kColumns),
                                             static_cast<std::size_t>(rows * kColumns), 1)];
    EXPECT_TRUE((product(first, rows) == expected).min()) << rows << " rows from " << first;
  }
}

}  // namespace
}  // namespace shoal::test
