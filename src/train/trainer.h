// A training run: from a config to a directory with log, metrics and checkpoints. Every rank has a trainer,
// and they do everything together; only rank 0 writes anything but its part of the checkpoints.
#pragma once

#include <functional>
#include <memory>

#include "comm/world.h"
#include "config/config.h"

namespace shoal {

class Tracer;

struct TrainResult {
  std::int64_t step = 0;     // updates done
  double train_loss = 0;     // of the last step
  double val_loss = 0;       // of the last evaluation, infinity when there was none
  bool interrupted = false;  // by SIGINT or SIGTERM: the state was saved and the run can be resumed, ...
  int exit_code = 0;         // ... unless this is not 0: it was before the first step
};

class Trainer {
 public:
  // Checks that the ranks were started alike, opens the data, checks that everything fits, takes the memory
  // and the run's directory, and makes or loads the model. Throws UserError for mistakes that the user can
  // mend. The tracer, which may be null, is told of every step and must outlive the trainer; `before_step` is
  // called before each step of this rank.
  Trainer(const Config& config, World& world, Tracer* tracer = nullptr,
          std::function<void()> before_step = {});
  ~Trainer();

  // Trains to the end of the run, or until SIGINT or SIGTERM on any rank. Throws Error when a step goes bad
  // and train.on_bad_step is "stop", naming step, micro-batch and tensor.
  TrainResult run();

 private:
  struct Run;
  std::unique_ptr<Run> run_;
};

}  // namespace shoal
