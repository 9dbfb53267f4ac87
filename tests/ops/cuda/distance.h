// The relative distance of two results.
#pragma once

#include "model/trainee.h"

namespace shoal::test {

// |a - b| / |b|
inline double distance(const Values& a, const Values& b) { return norm(a - b) / norm(b); }

}  // namespace shoal::test
