// A communicator that sends nothing and records what it would send: one rank of a group of any size, for dry
// runs and for tests of a schedule. Outputs are left unchanged, and tensors need no memory behind them.
//
// Bytes are the bytes that this rank sends by the algorithms for large transfers, with N ranks in a ring in
// the order of their group:
//   all_reduce      2 (N - 1) / N of x, to the next rank
//   reduce_scatter  (N - 1) / N of x, to the next rank
//   all_gather      (N - 1) / N of out, to the next rank
//   broadcast       pipelined from the root along the ring: x to the next rank, nothing from the last rank
//   all_to_all      1 / N of x to each other rank directly
//   send            x, to its receiver
//   barrier         nothing
#pragma once

#include <map>

#include "comm/communicator.h"

namespace shoal {

class Recording {
 public:
  struct Entry {
    std::string collective;  // name of the function of Communicator: "all_reduce", ...
    DType dtype = DType::f32;
    std::int64_t count = 0;  // elements of x
    int ranks = 1;           // of the group
    std::string purpose;     // "step 12, gradients of block.3"
    std::int64_t bytes = 0;  // sent by this rank
  };
  // The sum over all entries with the same collective and subject. The subject of the purpose above is
  // "gradients".
  struct Total {
    std::string collective, subject;
    std::int64_t calls = 0, bytes = 0;
  };

  // Records rank `rank` of `ranks`.
  Recording(int ranks, int rank);

  // The group of all ranks. It and all groups split from it record here.
  Communicator& ranks() { return *ranks_; }

  const std::vector<Entry>& entries() const { return log_->entries; }
  std::vector<Total> totals() const;  // in the order of their first entries
  // Bytes that this rank sends, by receiver (a rank of the run).
  const std::map<int, std::int64_t>& links() const { return log_->links; }
  std::int64_t bytes() const;  // sum over all links
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
