// A progress line on standard error for anything that takes more than two seconds: a bar that is redrawn on a
// terminal, whatever its width, a plain line every few seconds otherwise.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/clock.h"

namespace shoal {

// "title  [=====     ]  50 %  fact  fact" in at most `columns` columns. The bar takes the room that the facts
// leave; where there is too little, facts are left out from the last one on, and at the end the title is cut.
// `share` below 0 is unknown; 0 columns are any number, without a bar.
std::string progress_line(std::string_view title, double share, const std::vector<std::string>& facts,
                          int columns);

// "1.5k tokens/s"; below one per second the time of one, "3.4 s/batch". `unit` is "B" or a plural.
std::string format_rate(double per_second, std::string_view unit);

class Progress {
 public:
  // `total` <= 0 means unknown. `unit` is "B" for bytes (shown as MiB) or a noun such as "tokens".
  Progress(std::string title, double total, std::string unit);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void set_total(double total) { total_ = total; }
  void start_at(double done) {
    done_ = begun_at_ = done;
  }  // what was done before; the rate is that of the rest
  void update(double done, const std::string& note = {});
  void clear();   // takes the bar away without a trace
  void finish();  // leaves one final line with the total, rate and time, if anything was shown

 private:
  void draw(bool last);

  std::string title_, unit_, note_;
  double total_, done_ = 0, begun_at_ = 0, last_drawn_ = 0;
  bool terminal_, shown_ = false, finished_ = false;
  Stopwatch watch_;
};

}  // namespace shoal
