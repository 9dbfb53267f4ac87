// The differences between oneDNN 2 and 3.
#pragma once

#include <dnnl.hpp>

namespace shoal::cpu {

// No limit; the constant has another name in each.
inline constexpr auto kAnyIsa = static_cast<dnnl::cpu_isa>(0);

// Without a bias, `bias` has no dimensions.
inline dnnl::matmul::primitive_desc matmul_primitive(const dnnl::engine& engine, const dnnl::memory::desc& a,
                                                     const dnnl::memory::desc& b,
                                                     const dnnl::memory::desc& bias,
                                                     const dnnl::memory::desc& c,
                                                     const dnnl::primitive_attr& attributes) {
#if DNNL_VERSION_MAJOR >= 3
  return bias.is_zero() ? dnnl::matmul::primitive_desc(engine, a, b, c, attributes)
                        : dnnl::matmul::primitive_desc(engine, a, b, bias, c, attributes);
#else
  using Desc = dnnl::matmul::desc;
  return {bias.is_zero() ? Desc(a, b, c) : Desc(a, b, bias, c), attributes, engine};
#endif
}

}  // namespace shoal::cpu
