// Tokenizes a stream of texts on several threads and writes the ids in the order of the texts.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "data/ordered_jobs.h"
#include "data/prepare_parts.h"
#include "data/split_writer.h"
#include "data/tokenizer.h"

namespace shoal {

class TokenPipeline {
 public:
  // Keeps references. `splits` has a writer for each split that is used. `threads` >= 1.
  TokenPipeline(const Tokenizer& tokenizer, std::span<SplitWriter> splits, int threads);

  // Queues a text. Texts are tokenized independently of each other. `name` is for error messages. Waits while
  // too much text is queued, and rethrows exceptions from tokenizing or writing earlier texts.
  void add(std::string_view text, Split split, const std::string& name);
  void add_end_of_text(Split split);  // the tokenizer must have one
  void finish();                      // writes all queued texts; without this call they are dropped

 private:
  struct Segment {
    std::size_t begin, end;
    Split split;
    bool end_of_text;
    std::string name;
  };
  struct Batch {
    std::string text;
    std::vector<Segment> segments;
  };
  struct Ids {
    std::array<std::vector<std::int32_t>, kSplitNames.size()> of;  // by split
    std::size_t bytes() const { return (of[0].size() + of[1].size() + of[2].size()) * sizeof(std::int32_t); }
  };

  void submit();
  Ids tokenize(const Batch& batch) const;

  const Tokenizer& tokenizer_;
  std::shared_ptr<Batch> current_ = std::make_shared<Batch>();
  OrderedJobs<Ids> jobs_;
};

}  // namespace shoal
