// Token and position embedding.
#include "ops/cpu/cpu_backend.h"
#include "ops/cpu/philox_simd.h"
#include "ops/cpu/threads.h"

namespace shoal::cpu {

void CpuBackend::embedding_forward(const Tensor& out, const Tensor& tokens, const Tensor& wte,
                                   const Tensor& wpe, std::int64_t first_class, const Dropout& dropout,
                                   const Tensor& positions) {
  const std::int64_t channels = out.columns(), length = tokens.dim(1), classes = wte.dim(0);
  const DropoutRow mask(dropout, dropout.site);
  with_types(wte.dtype, out.dtype, [&]<typename T, typename S>() {
    for_blocks(team_, tokens.count(), rows_per_block(channels), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) {
        const std::int64_t token = tokens.as<std::int32_t>()[row] - first_class, t = row % length;
        const T* word = token >= 0 && token < classes ? wte.as<T>() + token * channels : nullptr;
        const std::int64_t position =
            positions ? positions.as<std::int32_t>()[row] : dropout.window.first_position + t;
        const T* place = wpe.as<T>() + position * channels;
        S* to = out.as<S>() + row * channels;
        const auto embed = [&](std::int64_t c, std::int64_t live, Vec factor) {
          const Vec value = word ? load_n(place + c, live) + load_n(word + c, live) : Vec{};
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
  const std::int64_t channels = dout.columns(), positions = tokens.dim(1), classes = dwte.dim(0);
  const DropoutRow mask(dropout, dropout.site);
  // A thread owns a range of columns and adds the tokens in order, so no two threads write to one element.
  with_type(dout.dtype, [&]<typename S>() {
    for_blocks(team_, channels, DropoutRow::kColumns, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = 0; row < tokens.count(); ++row) {
        const std::int64_t token = tokens.as<std::int32_t>()[row] - first_class, t = row % positions;
        float* word = token >= 0 && token < classes ? dwte.as<float>() + token * channels : nullptr;
        float* place = dwpe.as<float>() + (dropout.window.first_position + t) * channels;
        const S* from = dout.as<S>() + row * channels;
        DropoutRow::Factors factors;
        factors.fill(splat(1.0f));
        if (dropout.active()) {
          factors = mask.factors(dropout.window.row(row / positions, t), begin / DropoutRow::kColumns);
        }
        for_lanes(end - begin, [&](std::int64_t i, std::int64_t live) {
          const std::int64_t c = begin + i;
          const Vec grad = load_n(from + c, live) * factors[static_cast<std::size_t>(i / kLanes)];
          if (word) store_n(word + c, load_n(word + c, live) + grad, live);
          store_n(place + c, load_n(place + c, live) + grad, live);
        });
      }
    });
  });
}

}  // namespace shoal::cpu
