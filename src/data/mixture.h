// The data of a run: one dataset, or several that sequences are drawn from by weight.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "data/batch_sampler.h"
#include "data/dataset.h"

namespace shoal {

class Mixture {
 public:
  struct Source {
    double weight;  // its share of all sequences
    Dataset data;
  };

  // Opens the folders (data/dataset.h), whose weights add up to 1. Throws UserError, too, when their
  // tokenizers or vocabularies differ.
  Mixture(const std::map<std::string, double>& weights, const DatasetOptions& options);

  // In the order of their folders' names.
  const std::vector<Source>& sources() const { return sources_; }
  bool is_mixed() const { return sources_.size() > 1; }
  const Dataset& first() const { return sources_.front().data; }

  std::int64_t vocab_size() const { return first().vocab_size(); }
  const std::string& tokenizer_text() const { return first().tokenizer_text(); }
  bool has_split(const std::string& name) const;        // whether all have
  std::int64_t tokens(const std::string& split) const;  // of all
  std::vector<WeightedFile> split(const std::string& name) const;

  std::optional<double> entropy_per_token() const;  // of one dataset, see there
  void verify() const;                              // see Dataset::verify
  std::string description() const;                  // "data/books 70 %, data/code 30 %"; of one, its folder

 private:
  std::vector<Source> sources_;
};

}  // namespace shoal
