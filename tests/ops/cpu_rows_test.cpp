// Generation relies on this: a row of a product with up to eight rows has the same bits in any place,
// whatever the other rows hold and however many they are.
#include "ops/conformance.h"

namespace shoal::test {
namespace {

TEST(CpuRows, OfAProductDoNotDependOnTheOthers) {
  for (const auto& [n, k] : {std::pair<std::int64_t, std::int64_t>{768, 768},
                             {768, 3072},
                             {1000, 768},
                             {72, 24},
                             {96, 24},
                             {24, 96},
                             {105, 35}}) {
    for (const auto type : {DType::f32, DType::bf16}) {
      for (const int threads : {1, 3}) {
        const auto backend = make_cpu_backend(threads);
        ASSERT_TRUE(backend->few_rows_stand_alone());
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

}  // namespace
}  // namespace shoal::test
