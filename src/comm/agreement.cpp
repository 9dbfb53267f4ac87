#include "comm/agreement.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/log.h"

namespace shoal {
namespace {

// A text in a buffer of int32, a dtype that collectives take. Callers send the length first.
class TextBuffer {
 public:
  explicit TextBuffer(std::size_t bytes) : words_((bytes + 3) / 4) {}
  explicit TextBuffer(const std::string& text) : TextBuffer(text.size()) {
    if (!text.empty()) std::memcpy(words_.data(), text.data(), text.size());
  }
  Tensor tensor() { return {words_.data(), DType::i32, {static_cast<std::int64_t>(words_.size())}}; }
  std::string text(std::size_t bytes) const { return {reinterpret_cast<const char*>(words_.data()), bytes}; }

 private:
  std::vector<std::int32_t> words_;
};

Tensor one(std::int32_t& value) { return {&value, DType::i32, {1}}; }
// A length as two words: the text of a trace may be longer than 2 GiB.
Tensor words_of(std::int64_t& length) { return {&length, DType::i32, {2}}; }

// The lowest rank where `holds` is true, or -1.
int lowest_rank_with(Communicator& ranks, bool holds) {
  // Counted from the end, so that the maximum belongs to the lowest rank.
  std::int32_t from_end = holds ? ranks.size() - ranks.rank() : 0;
  ranks.all_reduce(one(from_end), ReduceOp::max).wait();
  return from_end == 0 ? -1 : ranks.size() - from_end;
}

// Packs facts into one text. Names and values contain no zero byte.
std::string pack(const std::vector<Fact>& facts) {
  std::string text;
  for (const auto& [name, value] : facts) (text += name).append(1, '\0').append(value).append(1, '\0');
  return text;
}
std::vector<Fact> unpack(std::string_view text) {
  std::vector<Fact> facts;
  const auto next = [&] {
    const auto end = text.find('\0');
    const std::string part(text.substr(0, end));
    text.remove_prefix(end + 1);
    return part;
  };
  while (!text.empty()) {
    auto name = next();
    facts.push_back({std::move(name), next()});
  }
  return facts;
}

}  // namespace

std::string broadcast_text(Communicator& ranks, std::string text, int root) {
  if (ranks.size() == 1) return text;
  auto length = static_cast<std::int64_t>(text.size());
  ranks.broadcast(words_of(length), root).wait();
  const auto bytes = static_cast<std::size_t>(length);
  TextBuffer buffer = ranks.rank() == root ? TextBuffer(text) : TextBuffer(bytes);
  ranks.broadcast(buffer.tensor(), root).wait();
  return buffer.text(bytes);
}

std::string first_text(Communicator& ranks, const std::string& text) {
  const int root = lowest_rank_with(ranks, !text.empty());
  return root < 0 ? "" : broadcast_text(ranks, text, root);
}

std::vector<std::string> all_gather_text(Communicator& ranks, const std::string& text) {
  const auto count = static_cast<std::size_t>(ranks.size());
  std::vector<std::int64_t> lengths(count);
  auto length = static_cast<std::int64_t>(text.size());
  ranks.all_gather({lengths.data(), DType::i32, {2 * std::int64_t{ranks.size()}}}, words_of(length)).wait();
  const auto width = static_cast<std::size_t>(*std::ranges::max_element(lengths) + 3) / 4 * 4;
  TextBuffer mine(text + std::string(width - text.size(), '\0')), all(width * count);
  ranks.all_gather(all.tensor(), mine.tensor()).wait();
  const auto joined = all.text(width * count);
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < count; ++i) {
    texts.push_back(joined.substr(i * width, static_cast<std::size_t>(lengths[i])));
  }
  return texts;
}

void send_text(Communicator& ranks, const std::string& text, int to) {
  auto length = static_cast<std::int64_t>(text.size());
  ranks.send(words_of(length), to).wait();
  ranks.send(TextBuffer(text).tensor(), to).wait();
}

std::string receive_text(Communicator& ranks, int from) {
  std::int64_t length = 0;
  ranks.receive(words_of(length), from).wait();
  TextBuffer buffer(static_cast<std::size_t>(length));
  ranks.receive(buffer.tensor(), from).wait();
  return buffer.text(static_cast<std::size_t>(length));
}

void all_or_none(Communicator& ranks, const std::function<void()>& stage) {
  if (ranks.size() == 1) return stage();
  std::exception_ptr failure;
  try {
    stage();
  } catch (const StoppedByPeer&) {
    throw;
  } catch (const Error&) {
    failure = std::current_exception();
  }
  const int failed = lowest_rank_with(ranks, failure != nullptr);
  if (failure) std::rethrow_exception(failure);
  if (failed >= 0) ranks.barrier();  // throws StoppedByPeer: the failed rank never joins it
}

void some_for_all(Communicator& ranks, bool here, const std::function<void()>& stage) {
  if (ranks.size() == 1) return stage();
  constexpr char kUser = 'u', kOther = 'o';  // first character of the text: the kind of error
  std::string failure;
  try {
    if (here) stage();
  } catch (const StoppedByPeer&) {
    throw;
  } catch (const UserError& error) {
    failure = kUser + std::string(error.what());
  } catch (const Error& error) {
    failure = kOther + std::string(error.what());
  }
  failure = first_text(ranks, failure);
  if (failure.empty()) return;
  if (failure[0] == kUser) throw UserError(failure.substr(1));
  throw Error(failure.substr(1));
}

void some_for_all_at_length(Communicator& ranks, bool here, const std::function<void()>& stage) {
  std::mutex mutex;
  std::condition_variable changed;
  bool over = !here;
  std::exception_ptr failure;
  std::jthread work;
  if (here) {
    work = std::jthread([&, muted = log::thread_muted()] {
      log::mute_thread(muted);
      try {
        stage();
      } catch (...) {
        failure = std::current_exception();
      }
      const std::lock_guard lock(mutex);
      over = true;
      changed.notify_one();
    });
  }
  for (std::int32_t busy = 1; busy > 0;) {
    std::unique_lock lock(mutex);
    busy = changed.wait_for(lock, std::chrono::milliseconds(200), [&] { return over; }) ? 0 : 1;
    lock.unlock();
    ranks.all_reduce({&busy, DType::i32, {1}}).wait();
  }
  some_for_all(ranks, here, [&] {
    if (failure) std::rethrow_exception(failure);
  });
}

void require_agreement(Communicator& ranks, const std::vector<Fact>& facts) {
  const auto first = unpack(broadcast_text(ranks, pack(facts)));
  std::map<std::string, std::string> mine;
  for (const auto& [name, value] : facts) mine[name] = value;
  std::string differences;
  const auto compare = [&](const std::string& name, const std::string& theirs, const std::string& ours) {
    if (theirs != ours) differences += fmt::format("\n  {}: {} (rank 0 has {})", name, ours, theirs);
  };
  for (const auto& [name, value] : first) {
    const auto found = mine.extract(name);
    compare(name, value, found ? found.mapped() : "nothing");
  }
  for (const auto& [name, value] : mine) compare(name, "nothing", value);
  all_or_none(ranks, [&] {
    if (differences.empty()) return;
    fail_user("it was not started like rank 0:{}\ngive every rank the same program, config and data",
              differences);
  });
}

}  // namespace shoal
