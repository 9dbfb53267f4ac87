// Counts the pieces of a stream of texts on several threads: GPT-2's pre-tokenization (data/gpt2_split.h)
// cuts a text into words, within which byte-pair encoding merges.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/gpt2_split.h"
#include "data/ordered_jobs.h"
#include "data/word_table.h"

namespace shoal {

class WordCounter {
 public:
  explicit WordCounter(int threads);  // >= 1

  // Queues a text. Texts are cut into words independently of each other. Waits while too much text is queued.
  void add(std::string_view text);
  // Returns the words of all texts. Counts do not depend on the number of threads. Memory grows with the
  // distinct words, not with the text.
  WordTable finish();

 private:
  struct Batch {
    std::string text;
    std::vector<std::size_t> ends;  // of the texts
  };

  void submit();
  WordTable count(const Batch& batch) const;

  Gpt2Splitter splitter_;
  WordTable words_;
  std::shared_ptr<Batch> current_ = std::make_shared<Batch>();
  OrderedJobs<WordTable> jobs_;
};

}  // namespace shoal
