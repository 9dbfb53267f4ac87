// A slow network between network namespaces, where the kernel cannot make one (no netem): every namespace
// gets a TUN device called `slow`, and this program carries packets between them.
//
//   bench_network_relay MBIT DELAY NAMESPACE...
//
// The namespaces have the addresses 10.98.0.1, .2, ... in the order given; the caller sets them, and shapes
// what a host sends to its rate with tbf on the device, as its network card would. From there a packet takes
// the delay of the host that sends it, and then waits at the receiver's port, which has its rate and a queue
// of a thousand full packets, as netem's has by default; a packet that finds it full is lost. Packets between
// two hosts keep their order. MBIT and DELAY are distributions (planner/distribution.h) over hosts; the delay
// is drawn anew ten times a second. Says "ready", and on SIGTERM what it carried, lost, and how late it was
// itself.
#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "core/clock.h"
#include "core/error.h"
#include "planner/distribution.h"

namespace shoal {
namespace {

constexpr std::size_t kLargest = 9000;  // bytes of a packet
constexpr double kQueuePackets = 1000;  // at a port, of the size that is usual there
constexpr double kDelayHolds = 0.1;     // seconds until the next draw
constexpr std::chrono::microseconds kTick{50};
constexpr std::size_t kBatch = 256;  // packets that are read from one device before the others' turn

struct Packet {
  double time = 0;  // when it gets to the port, then when it leaves it
  std::size_t to = 0;
  std::vector<unsigned char> bytes;
  bool operator>(const Packet& other) const { return time > other.time; }
};

int open_device(const std::string& name) {
  const int space = open(("/run/netns/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (space < 0 || setns(space, CLONE_NEWNET) != 0) {
    fail_user("no network namespace {}: {}", name, std::strerror(errno));
  }
  close(space);
  const int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  ifreq request{};
  request.ifr_flags = IFF_TUN | IFF_NO_PI;
  std::strncpy(request.ifr_name, "slow", IFNAMSIZ - 1);
  if (device < 0 || ioctl(device, TUNSETIFF, &request) != 0) {
    fail("no TUN device in {}: {}", name, std::strerror(errno));
  }
  return device;
}

class Relay {
 public:
  Relay(const std::string& mbit, const std::string& delay, std::vector<std::string> names)
      : delay_(delay, time_units(), 2), arrived_(names.size() * names.size(), 0.0), hosts_(names.size()) {
    const Distribution bandwidth(mbit, bandwidth_units(), 1);
    for (std::size_t i = 0; i < names.size(); ++i) {
      hosts_[i].device = open_device(names[i]);
      hosts_[i].bytes_per_s = bandwidth.draw(key_, static_cast<int>(i), 0) * 1e6 / 8;
      if (hosts_[i].bytes_per_s <= 0) fail_user("host {} has no bandwidth", names[i]);
      polled_.push_back({hosts_[i].device, POLLIN, 0});
    }
    sigset_t signals;
    sigemptyset(&signals);
    for (const int signal : {SIGTERM, SIGINT}) sigaddset(&signals, signal);
    sigprocmask(SIG_BLOCK, &signals, nullptr);
    polled_.push_back({signalfd(-1, &signals, SFD_CLOEXEC), POLLIN, 0});
    // So that it is on time beside the ranks.
    const sched_param priority{.sched_priority = 1};
    if (sched_setscheduler(0, SCHED_FIFO, &priority) != 0) prctl(PR_SET_TIMERSLACK, 1000UL);  // ns
  }

  void run() {
    while (true) {
      // Looking for every packet by itself would take a core.
      if (under_way_.empty() &&
          std::ranges::all_of(hosts_, [](const Host& host) { return host.port.empty(); })) {
        wait(-1);
      } else {
        std::this_thread::sleep_for(kTick);
        wait(0);
      }
      if (polled_.back().revents != 0) return report();
      for (std::size_t i = 0; i < hosts_.size(); ++i) {
        if (polled_[i].revents != 0) read_from(i);
      }
      queue_at_ports(clock_.seconds());
      for (auto& host : hosts_) deliver(host, clock_.seconds());
    }
  }

 private:
  struct Host {
    int device = -1;
    double bytes_per_s = 0;
    double free = 0;  // when its port has sent what it holds
    std::deque<Packet> port;
  };

  void wait(int milliseconds) {
    if (poll(polled_.data(), polled_.size(), milliseconds) < 0 && errno != EINTR) {
      fail("poll: {}", std::strerror(errno));
    }
  }

  void read_from(std::size_t from) {
    unsigned char buffer[kLargest + 64];
    for (std::size_t i = 0; i < kBatch; ++i) {
      const auto n = read(hosts_[from].device, buffer, sizeof(buffer));
      if (n < 20) return;
      if (buffer[0] >> 4 != 4 || buffer[16] != 10 || buffer[17] != 98) continue;  // not IPv4, not ours
      const std::size_t to = static_cast<std::size_t>(buffer[19]) - 1;
      if (to >= hosts_.size() || to == from) continue;
      const double now = clock_.seconds();
      const auto slot = static_cast<std::int64_t>(now / kDelayHolds);
      auto& arrived = arrived_[from * hosts_.size() + to];
      arrived = std::max(arrived, now + delay_.draw(key_, static_cast<int>(from), slot) * 1e-3);
      under_way_.push_back({arrived, to, {buffer, buffer + n}});
      std::ranges::push_heap(under_way_, std::greater<>());
    }
  }

  void queue_at_ports(double now) {
    while (!under_way_.empty() && under_way_.front().time <= now) {
      std::ranges::pop_heap(under_way_, std::greater<>());
      Packet packet = std::move(under_way_.back());
      under_way_.pop_back();
      auto& host = hosts_[packet.to];
      const auto size = static_cast<double>(packet.bytes.size());
      largest_ = std::max(largest_, size);
      if ((host.free - packet.time) * host.bytes_per_s > kQueuePackets * largest_) {
        ++lost_;
        continue;
      }
      packet.time = host.free = std::max(host.free, packet.time) + size / host.bytes_per_s;
      host.port.push_back(std::move(packet));
    }
  }

  void deliver(Host& host, double now) {
    for (; !host.port.empty() && host.port.front().time <= now; host.port.pop_front()) {
      const auto& [time, to, bytes] = host.port.front();
      if (write(host.device, bytes.data(), bytes.size()) < 0) ++lost_;
      ++carried_;
      carried_bytes_ += static_cast<double>(bytes.size());
      const double late = (clock_.seconds() - time) * 1e3;
      for (std::size_t i = 0; i < std::size(kLate); ++i) late_[i] += late > kLate[i];
      latest_ = std::max(latest_, late);
    }
  }

  void report() const {
    const double packets = std::max<double>(1, static_cast<double>(carried_));
    fmt::print("carried {} packets, {:.1f} MB; lost {}; later than", carried_, carried_bytes_ * 1e-6, lost_);
    for (std::size_t i = 0; i < std::size(kLate); ++i) {
      fmt::print("{} {} ms: {:.2f} %", i > 0 ? "," : "", kLate[i],
                 100 * static_cast<double>(late_[i]) / packets);
    }
    fmt::print("; latest {:.1f} ms\n", latest_);
  }

  static constexpr double kLate[] = {0.1, 1, 10};
  Distribution delay_;
  PhiloxKey key_ = philox_key(1, PhiloxStream::simulation);
  Stopwatch clock_;
  std::vector<Packet> under_way_;  // a heap, the first to arrive on top
  std::vector<double> arrived_;    // the last packet, by sender and receiver
  std::vector<Host> hosts_;
  std::vector<pollfd> polled_;
  double largest_ = 0;
  std::int64_t carried_ = 0, lost_ = 0, late_[std::size(kLate)] = {};
  double carried_bytes_ = 0, latest_ = 0;
};

}  // namespace
}  // namespace shoal

int main(int argc, char** argv) {
  using namespace shoal;
  if (argc < 5) {
    fmt::print(stderr, "usage: bench_network_relay MBIT DELAY NAMESPACE NAMESPACE...\n");
    return 2;
  }
  try {
    Relay relay(argv[1], argv[2], {argv + 3, argv + argc});
    fmt::print("ready\n");
    std::fflush(stdout);
    relay.run();
  } catch (const std::exception& error) {
    fmt::print(stderr, "bench_network_relay: {}\n", error.what());
    return 1;
  }
}
