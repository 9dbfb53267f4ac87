// A request from its headers to the last byte of its answer: its line in the log and in the metrics.
#pragma once

#include <httplib.h>

#include <atomic>
#include <string>

#include "serve/metrics.h"

namespace shoal::serve {

// All of a request's handlers run on one thread, and nothing else connects them: these functions are about
// the calling thread's request. `running` counts those that have begun and not ended.
void begin_exchange(Metrics& metrics, std::atomic<int>& running);
double exchange_seconds();  // since it began
// A remark for the line in the log.
void note_of_exchange(std::string text);
void end_exchange(const httplib::Request& request, int status);

// Text of a client as a line of the log may have it.
std::string printable(std::string text);

}  // namespace shoal::serve
