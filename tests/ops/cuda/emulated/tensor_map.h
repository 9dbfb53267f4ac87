// A tensor map of the emulated GPU: a matrix and the size of its tiles.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstring>

namespace shoal::emulated {

struct TensorMap {
  std::uint16_t* data;
  std::int64_t rows, columns;
  int tile_rows, tile_columns;
};
static_assert(sizeof(TensorMap) <= sizeof(CUtensorMap));

inline TensorMap tensor_map(const CUtensorMap& map) {
  TensorMap read;
  std::memcpy(&read, &map, sizeof read);
  return read;
}

}  // namespace shoal::emulated
