// Hidden matrices as wholes, for an optimizer whose update of one depends on all of it: they are dealt over
// the data ranks by what they cost. In a round, every rank collects its matrix from the ranks that have the
// pieces, transforms it, and gives the pieces back. Tensor ranks share each matrix, at the same time.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "optim/optimizer.h"
#include "parallel/data/engine_arenas.h"
#include "parallel/data/gradient_reducer.h"
#include "parallel/data/state_stream.h"
#include "parallel/gossip/mixer.h"

namespace shoal {

struct MatrixBuffers {
  Tensor sent, received;  // f32 [ranks * part] each, where there are several data ranks
  Tensor whole;           // f32 [elements], where a matrix is not transformed in its place
  MatrixWorkspace workspace;

  static MatrixBuffers take(Arena& arena, const ShardPlan& plan, const std::vector<Bucket>& buckets,
                            const EngineOptions& options, bool in_place);
};

class MatrixDealer {
 public:
  // The optimizer, the groups and the plan (of what is trained) must outlive this.
  MatrixDealer(Backend& backend, Optimizer& optimizer, const DataGroups& groups, Communicator& tensor,
               const ShardPlan& plan, const MatrixBuffers& buffers, StateStream& stream);

  // Transforms the matrices of a bucket's units. `direction` gives this rank's shard of a unit's, f32
  // [shard_size]; it may rest on the host.
  void transform(const Bucket& bucket, std::int64_t step, const std::function<Tensor(int unit)>& direction);

 private:
  Backend& backend_;
  Optimizer& optimizer_;
  const DataGroups& groups_;
  Communicator& tensor_;
  const ShardPlan& plan_;
  MatrixBuffers buffers_;
  StateStream& stream_;
};

}  // namespace shoal
