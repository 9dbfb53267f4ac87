// The functions of NCCL that src/comm/nccl calls, among threads of one process. Like the library's, they
// enqueue work on a stream and return, and no data moves before all members have called; a member's first
// call stays "in progress" until then, too. Calls that do not match are an error on all members, where the
// library would hang or write to wrong addresses, and nothing completes until the communicator is aborted.
#include <nccl.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "comm/nccl/fake.h"
#include "core/dtype.h"

namespace {

using shoal::emulated::enqueue;
using shoal::emulated::moved;

enum class Kind { all_reduce, reduce_scatter, all_gather, broadcast };

struct Call {
  Kind kind;
  const void* from;
  void* to;
  std::size_t count;
  ncclDataType_t type;
  ncclRedOp_t op = ncclSum;
  int root = 0;

  auto what() const { return std::tuple(kind, count, type, op, root); }
};

struct Message {
  const void* from;
  std::size_t bytes;
  bool taken = false;
};

struct Meeting {
  std::vector<Call> calls;
  std::size_t arrived = 0;
  bool done = false;
};

// The state that the members of a communicator share.
struct Club {
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0, connected = 0;
  std::vector<int> devices;
  bool left = false;   // a member has been aborted, so nothing completes
  std::string broken;  // why all have failed
  std::map<std::int64_t, Meeting> meetings;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Message>>> messages;  // from, to

  void fail(const std::string& why) {
    if (broken.empty()) broken = why;
    changed.notify_all();
  }
};

std::size_t size_of(ncclDataType_t type) {
  return type == ncclFloat64 ? 8 : type == ncclBfloat16 || type == ncclFloat16 ? 2 : type == ncclInt8 ? 1 : 4;
}

template <typename T>
T combined(T a, T b, ncclRedOp_t op) {
  return op == ncclSum ? static_cast<T>(a + b) : op == ncclMax ? std::max(a, b) : std::min(a, b);
}
// Rounds after every addition.
shoal::bfloat16 combined(shoal::bfloat16 a, shoal::bfloat16 b, ncclRedOp_t op) {
  return shoal::to_bfloat16(combined(shoal::to_float(a), shoal::to_float(b), op));
}

template <typename T>
std::vector<std::byte> reduced(const std::vector<Call>& calls, std::size_t count) {
  std::vector<std::byte> bytes(count * sizeof(T));
  auto* sums = reinterpret_cast<T*>(bytes.data());
  std::memcpy(sums, moved(calls[0].from), bytes.size());
  for (std::size_t r = 1; r < calls.size(); ++r) {
    const auto* x = static_cast<const T*>(moved(calls[r].from));
    for (std::size_t i = 0; i < count; ++i) sums[i] = combined(sums[i], x[i], calls[0].op);
  }
  return bytes;
}
std::vector<std::byte> reduced(const std::vector<Call>& calls, std::size_t count) {
  switch (calls[0].type) {
    case ncclFloat32:
      return reduced<float>(calls, count);
    case ncclFloat64:
      return reduced<double>(calls, count);
    case ncclInt32:
      return reduced<std::int32_t>(calls, count);
    case ncclBfloat16:
      return reduced<shoal::bfloat16>(calls, count);
    default:
      std::abort();
  }
}

void perform(const std::vector<Call>& calls) {
  const auto& [kind, from, to, count, type, op, root] = calls[0];
  const std::size_t part = count * size_of(type);
  std::vector<std::byte> result;
  switch (kind) {
    case Kind::all_reduce:
      result = reduced(calls, count);
      break;
    case Kind::reduce_scatter:
      result = reduced(calls, count * calls.size());
      break;
    case Kind::all_gather:
      for (const auto& call : calls) {
        const auto* x = static_cast<const std::byte*>(moved(call.from));
        result.insert(result.end(), x, x + part);
      }
      break;
    case Kind::broadcast: {
      const auto* x = static_cast<const std::byte*>(moved(calls[static_cast<std::size_t>(root)].from));
      result.assign(x, x + part);
      break;
    }
  }
  for (std::size_t r = 0; r < calls.size(); ++r) {
    const bool scattered = kind == Kind::reduce_scatter;
    std::memcpy(moved(calls[r].to), result.data() + (scattered ? r * part : 0),
                scattered ? part : result.size());
  }
}

struct Member {
  std::shared_ptr<Club> club;
  int rank = 0;
  std::int64_t calls = 0;
  int open = 0;  // tasks that have not ended; guarded by the club's mutex
  bool called = false, aborted = false;

  // Called by the stream's thread.
  void meet(std::int64_t number, const Call& call) {
    std::unique_lock lock(club->mutex);
    auto& meeting = club->meetings[number];
    const auto size = static_cast<std::size_t>(club->size), me = static_cast<std::size_t>(rank);
    meeting.calls.resize(size);
    meeting.calls[me] = call;
    if (++meeting.arrived == size && !club->left) {
      const bool alike = std::all_of(meeting.calls.begin(), meeting.calls.end(),
                                     [&](const Call& other) { return other.what() == call.what(); });
      if (alike) {
        perform(meeting.calls);
        meeting.done = true;
        club->changed.notify_all();
      } else {
        club->fail("members call different collectives");
      }
    }
    club->changed.wait(lock, [&] { return meeting.done || aborted; });
  }
};

// A send or a receive of a group.
struct Transfer {
  std::shared_ptr<Member> member;
  bool send;
  void* data;
  std::size_t bytes;
  int peer;
  cudaStream_t stream;
};

// Runs all messages at the same time; called by the stream's thread.
void exchange(Member& member, const std::vector<Transfer>& transfers) {
  auto& club = *member.club;
  std::unique_lock lock(club.mutex);
  std::vector<std::shared_ptr<Message>> sent;
  for (const auto& transfer : transfers) {
    if (!transfer.send || member.aborted) continue;
    sent.push_back(std::make_shared<Message>(Message{transfer.data, transfer.bytes}));
    club.messages[{member.rank, transfer.peer}].push_back(sent.back());
  }
  club.changed.notify_all();
  for (const auto& transfer : transfers) {
    if (transfer.send) continue;
    auto& queue = club.messages[{transfer.peer, member.rank}];
    club.changed.wait(lock, [&] { return !queue.empty() || member.aborted; });
    if (member.aborted) return;
    const auto message = queue.front();
    queue.pop_front();
    if (message->bytes != transfer.bytes) {
      club.fail("a message has another size than its receive");
      return club.changed.wait(lock, [&] { return member.aborted; });
    }
    std::memcpy(moved(transfer.data), moved(message->from), message->bytes);
    message->taken = true;
    club.changed.notify_all();
  }
  club.changed.wait(lock, [&] {
    return member.aborted ||
           std::all_of(sent.begin(), sent.end(), [](const auto& message) { return message->taken; });
  });
}

// Enqueues `task` with a delay, so that a missing wait shows.
template <typename Task>
ncclResult_t put(const std::shared_ptr<Member>& member, cudaStream_t stream, const Task& task) {
  auto& club = *member->club;
  {
    const std::lock_guard lock(club.mutex);
    if (!club.broken.empty()) return ncclInvalidUsage;
    if (!member->called) ++club.connected;
    member->called = true;
    ++member->open;
  }
  enqueue(stream, [member, task] {
    std::this_thread::sleep_for(std::chrono::microseconds(50));
    task(*member);
    const std::lock_guard lock(member->club->mutex);
    --member->open;
  });
  return ncclInProgress;
}

thread_local int group_depth = 0;
thread_local std::vector<Transfer> grouped;

struct Registry {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Club>> clubs;  // by id
  int ids = 0;
};
Registry& registry() {
  static Registry all;
  return all;
}

}  // namespace

struct ncclComm {
  std::shared_ptr<Member> member;
  bool finalized = false;
};

namespace {

ncclResult_t collective(ncclComm_t comm, cudaStream_t stream, const Call& call) {
  return put(comm->member, stream,
             [number = comm->member->calls++, call](Member& member) { member.meet(number, call); });
}

ncclResult_t transfer(bool send, const void* data, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  ncclGroupStart();
  grouped.push_back({comm->member, send, const_cast<void*>(data), count * size_of(type), peer, stream});
  return ncclGroupEnd();
}

}  // namespace

extern "C" {

ncclResult_t ncclGetVersion(int* version) { return *version = NCCL_VERSION_CODE, ncclSuccess; }
const char* ncclGetErrorString(ncclResult_t) { return "emulated"; }
const char* ncclGetLastError(ncclComm_t comm) {
  thread_local std::string text;
  const std::lock_guard lock(comm->member->club->mutex);
  return (text = comm->member->club->broken).c_str();
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  auto& all = registry();
  const std::lock_guard lock(all.mutex);
  *id = {};
  const auto name = std::to_string(all.ids++);
  std::memcpy(id->internal, name.data(), name.size());
  return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int size, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  if (config->blocking != 0) return ncclInvalidArgument;
  std::shared_ptr<Club> club;
  {
    auto& all = registry();
    const std::lock_guard lock(all.mutex);
    auto& known = all.clubs[id.internal];
    club = known.lock();
    if (!club) known = club = std::make_shared<Club>();
  }
  const std::lock_guard lock(club->mutex);
  if (club->joined++ == 0) club->size = size;
  if (club->size != size || rank >= size || club->joined > size) club->fail("members that do not fit");
  const int device = shoal::emulated::current_device();
  if (std::count(club->devices.begin(), club->devices.end(), device) > 0) club->fail("Duplicate GPU");
  club->devices.push_back(device);
  *comm = new ncclComm{std::make_shared<Member>(Member{club, rank})};
  return ncclInProgress;
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* state) {
  const auto& member = *comm->member;
  const auto& club = *member.club;
  const std::lock_guard lock(member.club->mutex);
  const bool waits = club.joined < club.size || (member.called && club.connected < club.size) ||
                     (comm->finalized && member.open > 0);
  *state = !club.broken.empty() ? ncclInvalidUsage : waits ? ncclInProgress : ncclSuccess;
  return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) { return comm->finalized = true, ncclInProgress; }
ncclResult_t ncclCommDestroy(ncclComm_t comm) { return delete comm, ncclSuccess; }
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  auto& member = *comm->member;
  {
    const std::lock_guard lock(member.club->mutex);
    member.aborted = member.club->left = true;
    for (auto& [way, queue] : member.club->messages) {
      if (way.first == member.rank) queue.clear();
    }
    member.club->changed.notify_all();
  }
  return delete comm, ncclSuccess;
}

ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t type, ncclRedOp_t op,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, {Kind::all_reduce, from, to, count, type, op});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, {Kind::reduce_scatter, from, to, count, type, op});
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, {Kind::all_gather, from, to, count, type});
}
ncclResult_t ncclBroadcast(const void* from, void* to, std::size_t count, ncclDataType_t type, int root,
                           ncclComm_t comm, cudaStream_t stream) {
  return collective(comm, stream, {Kind::broadcast, from, to, count, type, ncclSum, root});
}

ncclResult_t ncclSend(const void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(true, data, count, type, peer, comm, stream);
}
ncclResult_t ncclRecv(void* data, std::size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                      cudaStream_t stream) {
  return transfer(false, data, count, type, peer, comm, stream);
}
ncclResult_t ncclGroupStart() { return ++group_depth, ncclSuccess; }
ncclResult_t ncclGroupEnd() {
  if (--group_depth > 0 || grouped.empty()) return ncclSuccess;
  const auto all = std::exchange(grouped, {});
  const auto& first = all.front();
  for (const auto& each : all) {
    if (each.member != first.member || each.stream != first.stream) return ncclInvalidUsage;
  }
  return put(first.member, first.stream, [all](Member& member) { exchange(member, all); });
}

}  // extern "C"
