#include "core/dtype.h"

namespace shoal {

std::string_view name_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "float32";
    case DType::bf16:
      return "bfloat16";
    case DType::f16:
      return "float16";
    case DType::f64:
      return "float64";
    case DType::i32:
      return "int32";
    case DType::i8:
      return "int8";
  }
  return "?";
}

}  // namespace shoal
