// Parameters and units. A unit (the embedding, one block, the head) owns one flat buffer of parameters and
// one of gradients; its parameters are named views into them. Everything that treats parameters in bulk
// (reduction, sharding, checkpoints, the optimizer, the memory estimate) works on units and knows no layer.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "model/partition.h"

namespace shoal {

struct Initializer {
  enum class Kind : std::uint8_t { zeros, ones, normal };
  Kind kind = Kind::zeros;
  double stddev = 0;
};

// The parameters that weight decay applies to.
enum class Decay : std::uint8_t {
  matrices,       // those of two dimensions or more
  all,            // biases and norms as well
  no_embeddings,  // matrices without the embeddings of tokens and positions
};

// The division of a parameter over a tensor-parallel group. A replicated parameter is not divided. A sharded
// one is along dimension `dim`, which has `parts` equal pieces (three in the fused q, k, v projection); a
// rank has the same range of each.
struct Placement {
  int dim = -1;
  int parts = 1;
  ElementRange range = {};  // this rank's, within a piece
  std::int64_t most = 0;    // the largest range of any rank; all ranks reserve this much
  // A replicated parameter of whose gradient each tensor rank has a part, and these have to be added: of its
  // own tokens under sequence parallelism, of its own channels in an adapter.
  bool partial = false;
  bool replicated() const { return dim < 0; }
};

// A box of a parameter, in the coordinates of the whole one.
struct Box {
  Shape offset, shape;
};

// A parameter's elements in the flat buffer of its unit; of rank 0 where the model has no such parameter.
struct ParameterSlice {
  std::int64_t offset = 0;
  Shape shape;
  bool product = false;  // ParameterSpec's
  ElementRange range() const { return {offset, offset + shape.count()}; }
};

struct ParameterSpec {
  std::string name;   // nanoGPT's names: "transformer.h.0.attn.c_attn.weight"; weights are [out, in]
  Shape shape;        // of the whole model's parameter
  Shape local_shape;  // of this rank's elements, with the padding behind them, which is zero and stays zero
  Initializer init;
  bool decay = false;    // weight decay applies
  bool matrix = false;   // a hidden matrix: of a block's linear layer
  bool classes = false;  // a matrix with a row for each class
  Placement placement;
  std::int64_t offset = 0;  // in the unit's flat buffer, the same on all tensor ranks

  // The boxes that this rank holds, one after the other in its memory and each in row-major order; a single
  // box where it holds the whole parameter.
  std::vector<Box> boxes() const;
  // Whether it is one of the matrices that weights in 8 bits replace.
  bool product() const { return matrix || classes; }
  ParameterSlice slice() const { return {offset, local_shape, product()}; }
};

struct UnitSpec {
  std::string name;    // "embedding", "block.0", "head"
  std::string prefix;  // of its parameters' names: "transformer.h.0."
  // Hidden matrices come first, then other decayed parameters. The replicated ones lie on both sides of the
  // border, so that they are one range. Empty where this rank has no part of the unit.
  std::vector<ParameterSpec> parameters;
  std::int64_t size = 0;      // elements of the flat buffer, gaps for alignment included
  std::int64_t decayed = 0;   // the first so many elements hold the decayed parameters
  std::int64_t matrices = 0;  // the first so many of them hold the hidden matrices
  ElementRange replicated;    // the elements that all tensor ranks have
  ElementRange partial;       // the elements of whose gradients tensor ranks may have parts
  int home = 0;               // the unit whose stage has this one: its block for an adapter, else itself
  bool adapter = false;
  bool trained = true;  // false: without gradients and optimizer state

  // The parameter of this name behind the prefix: "attn.c_attn.weight". Throws Error where there is none.
  const ParameterSpec& parameter(std::string_view name) const;
};

// A flat buffer of a unit: its weights or its gradients.
struct UnitView {
  const UnitSpec* spec = nullptr;
  Tensor flat;
  bool unset = false;  // gradients whose ranges of products have to be set before they are added to
  bool int8 = false;   // weights whose products are in 8 bits (ops/int8.h), each where its matrix was

  // Whether there is a buffer: not for the gradients of a unit that is not trained.
  explicit operator bool() const { return static_cast<bool>(flat); }
  // A parameter in this buffer; an empty slice, or no buffer, gives an empty tensor.
  Tensor operator[](const ParameterSlice& slice) const;
};

// Whether a unit's name fits a pattern of GptConfig::frozen.
bool fits(const std::string& unit, const std::string& pattern);

// All units of the model: 0 is the embedding, 1 ... n_layer the blocks, n_layer + 1 the head, whose matrix is
// the embedding's where the two are tied; then the adapters of the blocks, where there are any. Units outside
// `part` are without parameters. `decay` moves parameters within their unit's buffer.
std::vector<UnitSpec> gpt_units(const GptConfig& config, const ModelPart& part = {},
                                Decay decay = Decay::matrices);

// The classes that a tensor rank allocates: its range of the vocabulary, rounded up so that rows of logits
// stay aligned.
std::int64_t padded_vocabulary(const GptConfig& config, const TensorRank& tensor = {});
// The largest of so many tensor ranks.
std::int64_t widest_vocabulary(const GptConfig& config, int tensor_ranks);

std::int64_t parameter_count(const std::vector<UnitSpec>& units);  // of the whole model, without padding
std::int64_t trained_count(const std::vector<UnitSpec>& units);    // those of them that are trained

// Training FLOPs per token, forward and backward: 6 N + 12 L C T, which counts attention as if it were not
// causal; 4 instead of 6 for parameters that are not trained.
double flops_per_token(const GptConfig& config);

// Whether this part's rank counts and saves a parameter; of the ranks that hold the same of it, exactly one
// does.
bool owns(const ModelPart& part, const UnitSpec& unit, const ParameterSpec& parameter);

// Fills out f32 [n] with the initial values of elements [first, first + n) of one of a parameter's boxes.
// They depend only on the seed, the parameter's name, and their positions in the whole parameter.
void initialize(Backend& backend, const ParameterSpec& spec, const Box& box, const Tensor& out,
                std::int64_t first, std::uint64_t seed);

}  // namespace shoal
