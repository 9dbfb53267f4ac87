// Tokenizes a stream of texts on several threads and writes the ids in the order of the texts.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "data/split_writer.h"
#include "data/tokenizer.h"

namespace shoal {

enum class Split : std::uint8_t { train, val };

class TokenPipeline {
 public:
  // Keeps references. `threads` >= 1.
  TokenPipeline(const Tokenizer& tokenizer, SplitWriter& train, SplitWriter& val, int threads);
  ~TokenPipeline();  // drops what is under way; call finish first
  TokenPipeline(const TokenPipeline&) = delete;
  TokenPipeline& operator=(const TokenPipeline&) = delete;

  // Texts are tokenized one by one. `name` is for error messages. Waits while too much is under way, and
  // throws what tokenizing or writing earlier texts threw.
  void add(std::string_view text, Split split, const std::string& name);
  void add_end_of_text(Split split);  // the tokenizer must have one
  void finish();                      // everything is written afterwards

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
    std::array<std::vector<std::int32_t>, 2> ids;  // by split
    std::exception_ptr error;
    bool done = false;
  };

  void submit();
  void write_front();
  void work();
  void tokenize(Batch& batch) const;

  const Tokenizer& tokenizer_;
  std::array<SplitWriter*, 2> writers_;
  std::size_t most_under_way_;
  std::unique_ptr<Batch> current_ = std::make_unique<Batch>();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Batch>> under_way_;  // in order; written from the front
  std::deque<Batch*> waiting_;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace shoal
