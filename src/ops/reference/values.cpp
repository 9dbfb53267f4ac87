#include "ops/reference/values.h"

#include "core/error.h"
#include "ops/int8.h"

namespace shoal::reference {
namespace {

double widen(double value) { return value; }
double widen(float value) { return value; }
double widen(bfloat16 value) { return to_float(value); }

void narrow(double& out, double value) { out = value; }
void narrow(float& out, double value) { out = static_cast<float>(value); }
void narrow(bfloat16& out, double value) { out = to_bfloat16(static_cast<float>(value)); }

Values read(const Int8Rows& x) {
  Values values;
  for (std::int64_t n = 0; n < x.rows(); ++n) {
    for (std::int64_t k = 0; k < x.columns(); ++k)
      values.push_back(static_cast<double>(x.step(n)) * x.row(n)[k]);
  }
  return values;
}

template <typename Visit>
void visit(const Tensor& x, Visit&& visitor) {
  switch (x.dtype) {
    case DType::f64:
      return visitor(x.as<double>());
    case DType::f32:
      return visitor(x.as<float>());
    case DType::bf16:
      return visitor(x.as<bfloat16>());
    default:
      fail("the reference backend has no kernels for {}", name_of(x.dtype));
  }
}

}  // namespace

Values read(const Tensor& x) {
  if (!x) return {};
  if (x.dtype == DType::i8) return read(Int8Rows(x));
  Values values(static_cast<std::size_t>(x.count()));
  visit(x, [&](const auto* data) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = widen(data[i]);
  });
  return values;
}

void write(const Tensor& x, std::span<const double> values) {
  assert(static_cast<std::size_t>(x.count()) == values.size());
  visit(x, [&](auto* data) {
    for (std::size_t i = 0; i < values.size(); ++i) narrow(data[i], values[i]);
  });
}

}  // namespace shoal::reference
