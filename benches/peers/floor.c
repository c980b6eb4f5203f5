/* The floor: what the kernel alone costs. One thread, edge-triggered epoll, one recv and one send a wake-up; it knows
 * just enough HTTP to count requests, and answers each with the same prepared response, whatever was asked.
 *
 *   cc -O2 -o floor floor.c;  ./floor PORT BODY_FILE
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 1 << 16, BATCH_MAX = 64, EVENTS_MAX = 512 };

/* Responses that a connection still has to get; the first of them is sent up to `offset`. */
static struct {
  unsigned responses;
  size_t offset;
} owed[CONNECTIONS_MAX];

static char *response;
static size_t response_bytes;

static void prepare_response(const char *body_path) {
  FILE *file = fopen(body_path, "rb");
  struct stat status;
  if (!file || fstat(fileno(file), &status)) perror(body_path), exit(1);
  response = malloc(status.st_size + 512);
  int head_bytes = sprintf(response,
                           "HTTP/1.1 200 OK\r\nServer: floor\r\nDate: Fri, 20 Nov 2026 12:00:00 GMT\r\n"
                           "Content-Type: text/html\r\nContent-Length: %zu\r\nLast-Modified: Fri, 20 Nov 2026 12:00:00 GMT\r\n"
                           "ETag: \"abc-def\"\r\nAccept-Ranges: bytes\r\n\r\n",
                           (size_t)status.st_size);
  if (fread(response + head_bytes, 1, status.st_size, file) != (size_t)status.st_size) perror(body_path), exit(1);
  response_bytes = head_bytes + status.st_size;
  fclose(file);
}

static int listen_on(int port) {
  int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* accepted sockets inherit it */
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) perror("bind"), exit(1);
  return listener;
}

/* Sends what is owed until the socket takes no more; all pipelined responses in one call. False if the peer is gone. */
static int send_owed(int fd) {
  while (owed[fd].responses) {
    struct iovec pieces[BATCH_MAX];
    unsigned count = owed[fd].responses < BATCH_MAX ? owed[fd].responses : BATCH_MAX;
    for (unsigned i = 0; i < count; i++) pieces[i] = (struct iovec){response, response_bytes};
    pieces[0].iov_base = response + owed[fd].offset, pieces[0].iov_len -= owed[fd].offset;
    struct msghdr message = {.msg_iov = pieces, .msg_iovlen = count};
    ssize_t sent = count == 1 ? send(fd, pieces[0].iov_base, pieces[0].iov_len, MSG_NOSIGNAL) : sendmsg(fd, &message, MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN;
    owed[fd].offset += sent;
    owed[fd].responses -= owed[fd].offset / response_bytes;
    owed[fd].offset %= response_bytes;
  }
  return 1;
}

/* Reads once, answers each head that ended in it. A head split over two reads is not counted: clients send small ones.
 * A connection whose last head says `Connection: close` is closed after the response. */
static int receive(int fd) {
  static char input[65536];
  ssize_t got = recv(fd, input, sizeof input, 0);
  if (got < 0) return errno == EAGAIN;
  if (got == 0) return 0;
  for (char *at = input; (at = memmem(at, input + got - at, "\r\n\r\n", 4)); at += 4) owed[fd].responses++;
  return send_owed(fd) && (owed[fd].responses || !memmem(input, got, "\r\nConnection: close", 19));
}

int main(int argc, char **argv) {
  if (argc != 3) return fprintf(stderr, "usage: floor PORT BODY_FILE\n"), 2;
  prepare_response(argv[2]);
  int listener = listen_on(atoi(argv[1])), poller = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS_MAX];
  epoll_ctl(poller, EPOLL_CTL_ADD, listener, &event);
  for (;;) {
    int ready = epoll_wait(poller, events, EVENTS_MAX, -1);
    for (int i = 0; i < ready; i++) {
      int fd = events[i].data.fd;
      if (fd == listener) {
        int client;
        while ((client = accept4(listener, 0, 0, SOCK_NONBLOCK)) >= 0) {
          event.events = EPOLLIN | EPOLLOUT | EPOLLET, event.data.fd = client;
          owed[client].responses = 0, owed[client].offset = 0;
          epoll_ctl(poller, EPOLL_CTL_ADD, client, &event);
        }
        continue;
      }
      int open = 1;
      if (owed[fd].responses) open = send_owed(fd);
      if (open && (events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) open = receive(fd);
      if (!open) close(fd);
    }
  }
}
