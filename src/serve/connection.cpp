#include "serve/connection.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <filesystem>

namespace shoal::serve {
namespace {

bool is_peer(int socket, const std::string& address, const std::string& port) {
  sockaddr_storage peer{};
  socklen_t length = sizeof(peer);
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&peer), &length) != 0) return false;
  std::array<char, NI_MAXHOST> host{};
  std::array<char, NI_MAXSERV> service{};
  return ::getnameinfo(reinterpret_cast<sockaddr*>(&peer), length, host.data(), host.size(), service.data(),
                       service.size(), NI_NUMERICHOST | NI_NUMERICSERV) == 0 &&
         address == host.data() && port == service.data();
}

}  // namespace

int find_socket(const std::string& address, int port) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", ignored)) {
    const auto name = entry.path().filename().string();
    int socket = -1;
    std::from_chars(name.data(), name.data() + name.size(), socket);
    if (is_peer(socket, address, std::to_string(port))) return socket;
  }
  return -1;
}

void end_reading(int socket) {
  if (socket >= 0) ::shutdown(socket, SHUT_RD);
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
