// A communicator that sends nothing and writes down what would have been sent: one rank of any number, for
// dry runs and for tests of a schedule. Outputs stay as they are, so nothing may depend on them; tensors need
// no memory behind them.
//
// Bytes are what this rank sends, by the algorithms that large transfers use, N ranks in a ring in the order
// of their group: all_reduce 2 (N - 1) / N of x, reduce_scatter (N - 1) / N of x, all_gather (N - 1) / N of
// out, all to the next rank; broadcast pipelined along the ring from its root, all of x to the next rank but
// none from the last; all_to_all 1 / N of x to each other rank directly; send x to its receiver. A barrier
// sends nothing worth counting.
#pragma once

#include <map>

#include "comm/communicator.h"

namespace shoal {

class Recording {
 public:
  struct Entry {
    std::string collective;  // "all_reduce", ..., as the Communicator's functions are called
    DType dtype = DType::f32;
    std::int64_t count = 0;  // elements of x
    int ranks = 1;           // of the group
    std::string purpose;     // "step 12, gradients of block.3"
    std::int64_t bytes = 0;  // that this rank sends
  };
  // Of all entries of one collective and one matter: "gradients" above.
  struct Total {
    std::string collective, matter;
    std::int64_t calls = 0, bytes = 0;
  };

  // As rank `rank` of `ranks`.
  Recording(int ranks, int rank);

  // The group of all ranks. It and its parts write down here.
  Communicator& ranks() { return *ranks_; }

  const std::vector<Entry>& entries() const { return log_->entries; }
  std::vector<Total> totals() const;  // in the order of their first entries
  // Bytes from this rank to each rank of the run it sends to.
  const std::map<int, std::int64_t>& links() const { return log_->links; }
  std::int64_t bytes() const;  // over all links
  void clear();

 private:
  friend class RecordingCommunicator;
  struct Log {
    std::vector<Entry> entries;
    std::map<int, std::int64_t> links;
  };
  std::shared_ptr<Log> log_ = std::make_shared<Log>();
  std::unique_ptr<Communicator> ranks_;
};

}  // namespace shoal
