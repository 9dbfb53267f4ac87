#include "serve/connection.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <vector>

namespace shoal::serve {
namespace {

using Name = decltype(::getsockname);

// Whether `name_of` the socket, which is its own end or the other, has this port, and this address unless it
// is "".
bool has_name(Name& name_of, int socket, const std::string& address, const std::string& port) {
  sockaddr_storage name{};
  socklen_t length = sizeof(name);
  if (name_of(socket, reinterpret_cast<sockaddr*>(&name), &length) != 0) return false;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  return ::getnameinfo(reinterpret_cast<sockaddr*>(&name), length, host.data(), host.size(), service.data(),
                       service.size(), NI_NUMERICHOST | NI_NUMERICSERV) == 0 &&
         (address.empty() || address == host.data()) && port == service.data();
}

// The process's descriptors of sockets with such a name.
std::vector<int> find_sockets(Name& name_of, const std::string& address, int port) {
  std::vector<int> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const auto name = entry.path().filename().string();
    int socket = -1;
    std::from_chars(name.data(), name.data() + name.size(), socket);
    if (has_name(name_of, socket, address, std::to_string(port))) found.push_back(socket);
  }
  return found;
}

}  // namespace

int find_socket(const std::string& address, int port) {
  const auto found = find_sockets(::getpeername, address, port);
  return found.empty() ? -1 : found.front();
}

void end_reading(int socket) {
  if (socket >= 0) ::shutdown(socket, SHUT_RD);
}

void end_reading_at(int port) {
  for (const int socket : find_sockets(::getsockname, "", port)) end_reading(socket);
}

bool is_closed(int socket) {
  if (socket < 0) return false;
  char byte = 0;
  const auto received = ::recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  return received == 0 || (received < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

void finish_answer(int socket) {
  if (socket < 0) return;
  ::shutdown(socket, SHUT_WR);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::array<char, 1 << 16> discarded;
  while (std::chrono::steady_clock::now() < end) {
    pollfd wait{.fd = socket, .events = POLLIN, .revents = 0};
    if (::poll(&wait, 1, 100) > 0 && ::recv(socket, discarded.data(), discarded.size(), MSG_DONTWAIT) <= 0)
      return;
  }
}

}  // namespace shoal::serve
