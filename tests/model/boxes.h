// Iterates over the elements of boxes of parameters.
#pragma once

#include "model/unit.h"

namespace shoal::test {

// Calls f(element of the whole parameter) for the elements of a box, in its order.
template <typename F>
void for_elements(const ParameterSpec& parameter, const Box& box, F&& f) {
  const std::int64_t columns = parameter.shape[-1], width = box.shape[-1];
  for (std::int64_t i = 0; i < box.shape.count(); ++i) {
    const std::int64_t row = parameter.shape.rank() == 1 ? 0 : box.offset[0] + i / width;
    f(row * columns + box.offset[-1] + i % width);
  }
}

}  // namespace shoal::test
