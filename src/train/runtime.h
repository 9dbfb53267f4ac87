// The objects that compute on one rank: the backend, the communicator over it, the mesh, the engine with the
// parameters, and the model. Training, evaluation and sampling build them here, in this order.
#pragma once

#include <memory>

#include "config/plan.h"
#include "generate/generator.h"
#include "parallel/backend_ranks.h"
#include "parallel/data/data_engine.h"
#include "parallel/mesh.h"
#include "parallel/pipeline/pipeline.h"

namespace shoal {

class Runtime {
 public:
  enum class Use : std::uint8_t {
    training,
    evaluation,  // parameters, and activations of forward passes
    parameters,  // for a generator, which has activations of its own
  };

  // Opens the backend and connects the ranks; collective over `group`, which must outlive this. Throws
  // UserError when the backend or the plan's exchange between GPUs is not available.
  Runtime(const RunPlan& plan, Communicator& group, const BackendOptions& options);

  // Takes the memory that the plan needs. Collective.
  void allocate(const RunPlan& plan, Use use);

  Backend& backend() const { return *backend_; }
  Communicator& ranks() const { return *connected_.ranks; }       // for tensors in the backend's memory, too
  const std::string& exchange() const { return connected_.how; }  // between GPUs, in words
  Mesh& mesh() const { return *mesh_; }
  // After allocate.
  DataEngine& engine() const { return *engine_; }
  Pipeline& model() const { return *model_; }  // not for Use::parameters

 private:
  std::unique_ptr<Backend> backend_;
  BackendRanks connected_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<DataEngine> engine_;
  std::unique_ptr<Pipeline> model_;
};

// A generator of `texts` texts at a time, on the model's tensor-parallel ranks.
Generator make_generator(const Runtime& runtime, const RunPlan& plan, int texts);

}  // namespace shoal
