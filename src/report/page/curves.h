// The curves of a run as JSON, reduced to the points that a screen can show.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "report/metrics.h"

namespace shoal {

// {"clock": {"step", "tokens", "seconds"}, "loss": {"x", "y"}, ...}: equally long arrays. x is the step; the
// clock says how many tokens and seconds of training that is. A curve without finite values is left out. A
// long one has its extremes (plot.h, thinned()), and also {"mean_x", "mean_y"}, the means that smoothing
// takes. Values that are not finite are null.
nlohmann::ordered_json curves_json(const Metrics& metrics);

// Seconds of training up to the last logged step, without evaluations and saves.
double training_seconds(const Metrics& metrics);

// A number with the digits of a float, which is half as long in a file; null where it is not finite.
nlohmann::ordered_json short_number(double value);

}  // namespace shoal
