// Token and position embedding.
#include <algorithm>
#include <vector>

#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/philox_simd.h"
#include "ops/cpu/threads.h"
#include "ops/int8.h"

namespace shoal::cpu {

void CpuBackend::embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte,
                                   const Tensor& wpe, std::int64_t first_class, const Dropout& dropout,
                                   const Tensor& positions) {
  const std::int64_t channels = out.columns(), length = tokens.dim(1), classes = wte.dim(0);
  const DropoutRow mask(dropout, dropout.site);
  with_types(wpe.dtype, out.dtype, [&]<typename T, typename S>() {
    const auto word = [&](std::int64_t token, std::int64_t c, std::int64_t live) {
      if (wte.dtype != DType::i8) return load_n(wte.as<T>() + token * channels + c, live);
      const Int8Rows words(wte);
      return load_n(words.row(token) + c, live) * words.step(token);
    };
    for_blocks(team_, tokens.count(), rows_per_block(channels), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t token = tokens.as<std::int32_t>()[row] - first_class, t = row % length;
        const bool here = token >= 0 && token < classes;
        const std::int64_t position =
            positions ? positions.as<std::int32_t>()[row] : dropout.window.first_position + t;
        const T* place = wpe.as<T>() + position * channels;
        S* to = out.as<S>() + row * channels;
        const auto embed = [&](std::int64_t c, std::int64_t live, Vec factor) {
          const Vec value = here ? load_n(place + c, live) + word(token, c, live) : Vec{};
          store_n(to + c, value * factor, live);
        };
        if (dropout.active()) {
          for_dropout_row(mask, dropout.window.row(row / length, t), channels, embed);
        } else {
          for_lanes(channels, [&](std::int64_t c, std::int64_t live) { embed(c, live, splat(1.0f)); });
        }
      }
    });
  });
}

void CpuBackend::embedding_backward(const Tensor& dwte, const Tensor& dwpe, const Tensor& dout,
                                    const Tensor& tokens, std::int64_t first_class, const Dropout& dropout) {
  const std::int64_t channels = dout.columns(), positions = tokens.dim(1), classes = dwte.dim(0),
                     first_position = dropout.window.first_position;
  const DropoutRow mask(dropout, dropout.site);
  const auto class_of = [&](std::int64_t row) { return tokens.as<std::int32_t>()[row] - first_class; };
  const auto is_here = [&](std::int64_t row) { return class_of(row) >= 0 && class_of(row) < classes; };
  const auto factors_of = [&](std::int64_t row, std::int64_t column) {
    DropoutRow::Factors factors;
    factors.fill(splat(1.0f));
    if (!dropout.active()) return factors;
    return mask.factors(dropout.window.row(row / positions, row % positions), column / DropoutRow::kColumns);
  };
  // A thread owns a range of columns, so no two threads write to one element. Tokens are added in their
  // order.
  const auto add_in_float32 = [&]<typename S>() {
    for_blocks(team_, channels, DropoutRow::kColumns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < tokens.count(); ++row) {
        float* word = is_here(row) ? dwte.as<float>() + class_of(row) * channels : nullptr;
        float* place = dwpe.as<float>() + (first_position + row % positions) * channels;
        const S* from = dout.as<S>() + row * channels;
        const auto factors = factors_of(row, begin);
        for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
          const std::int64_t c = begin + i;
          const Vec grad = load_n(from + c, live) * factors[static_cast<std::size_t>(i / kLanes)];
          if (word) store_n(word + c, load_n(word + c, live) + grad, live);
          store_n(place + c, load_n(place + c, live) + grad, live);
        });
      }
    });
  };
  // Row by row of the gradients, so that each is rounded once.
  const auto add_in_bfloat16 = [&]<typename S>() {
    std::vector<std::int64_t> order;  // of tokens that are here, by class
    for (std::int64_t row = 0; row < tokens.count(); ++row) {
      if (is_here(row)) order.push_back(row);
    }
    std::ranges::stable_sort(order, {}, class_of);
    for_blocks(team_, channels, DropoutRow::kColumns, [&](std::int64_t begin, std::int64_t end) {
      const auto add_rows = [&](bfloat16* to, std::int64_t count, auto&& row_of) {
        DropoutRow::Factors sums;
        const auto for_sums = [&](auto&& f) {
          for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
            f(begin + i, live, static_cast<std::size_t>(i / kLanes));
          });
        };
        for_sums([&](std::int64_t c, std::int64_t live, std::size_t at) { sums[at] = load_n(to + c, live); });
        for (std::int64_t n = 0; n < count; ++n) {
          const S* from = dout.as<S>() + row_of(n) * channels;
          const auto factors = factors_of(row_of(n), begin);
          for_sums([&](std::int64_t c, std::int64_t live, std::size_t at) {
            sums[at] += load_n(from + c, live) * factors[at];
          });
        }
        for_sums([&](std::int64_t c, std::int64_t live, std::size_t at) { store_n(to + c, sums[at], live); });
      };
      for (auto first = order.begin(); first != order.end();) {
        const std::int64_t token = class_of(*first);
        const auto last = std::find_if(first, order.end(), [&](auto row) { return class_of(row) != token; });
        add_rows(dwte.as<bfloat16>() + token * channels, last - first, [&](auto n) { return first[n]; });
        first = last;
      }
      for (std::int64_t t = 0; t < positions; ++t) {
        add_rows(dwpe.as<bfloat16>() + (first_position + t) * channels, tokens.dim(0),
                 [&](auto b) { return b * positions + t; });
      }
    });
  };
  with_type(dout.dtype, [&]<typename S>() {
    dwte.dtype == DType::bf16 ? add_in_bfloat16.template operator()<S>()
                              : add_in_float32.template operator()<S>();
  });
}

}  // namespace shoal::cpu
