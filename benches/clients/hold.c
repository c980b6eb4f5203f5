/* Holds connections open, as idle or slow clients do.
 *
 *   cc -O2 -o hold hold.c;  ./hold PORT PATH CONNECTIONS [READ_BYTES INTERVAL_MS]
 *   cc -O2 -o hold-tls -DWITH_TLS hold.c -lssl -lcrypto;  the same over TLS, without slow reading
 *
 * Opens the connections and asks for PATH once on each. Without READ_BYTES each reads its response and is idle then.
 * With it each has a small receive buffer, and reads so many bytes every INTERVAL_MS; the turns of all are spread over
 * the interval. Prints `ready` once each has its response (or its first bytes), stays until its input ends, and then
 * prints how many connections the server had closed and how many bytes were read.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "transport.h"

#ifdef WITH_TLS
#define TLS_GROUPS "X25519"
#else
#define TLS_GROUPS NULL
#endif

enum { RECEIVE_BUFFER_BYTES = 4096, INPUT_BYTES = 64 << 10, CONNECTIONS_MAX = 20000, LATE_NS_MAX = 50000000 };

static int port, count, read_bytes, interval_ms;
static const char *path;
static int *fds;
static struct tls *sessions;
static uint64_t closed, bytes_read;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static int open_connection(struct tls *session) {
  int fd = socket(AF_INET, SOCK_STREAM, 0), receive_buffer_bytes = RECEIVE_BUFFER_BYTES;
  if (fd < 0) perror("socket"), exit(2);
  if (read_bytes) setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof receive_buffer_bytes);
  struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (connect(fd, (void *)&server, sizeof server)) perror("connect"), exit(1);
  if (tls_open(session, fd, 0) && tls_handshake(session) <= 0) fprintf(stderr, "hold: a handshake failed\n"), exit(1);
  char request[4096];
  int request_bytes = snprintf(request, sizeof request, "GET %s HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n\r\n", path, port);
  if (tls_send(session, fd, request, request_bytes) != request_bytes) perror("send"), exit(1);
  return fd;
}

/* Reads the whole response; the connection stays. */
static void read_response(struct tls *session, int fd) {
  static char input[INPUT_BYTES];
  size_t have = 0, left = SIZE_MAX;
  while (left) {
    ssize_t got = tls_receive(session, fd, input + have, sizeof input - have - 1);
    if (got <= 0) fprintf(stderr, "hold: the server closed a connection before it had answered\n"), exit(1);
    bytes_read += got;
    if (left != SIZE_MAX) { left -= got; continue; }
    input[have += got] = 0;
    char *end = strstr(input, "\r\n\r\n"), *length = strcasestr(input, "\r\ncontent-length:");
    if (!end) continue;
    if (strncmp(input + 8, " 200", 4) || !length) fprintf(stderr, "hold: unexpected response: %.60s\n", input), exit(1);
    left = atoll(length + 17) - (have - (end + 4 - input)), have = 0;
  }
}

static void read_slowly(int *fd) {
  char input[INPUT_BYTES];
  ssize_t got = *fd < 0 ? 0 : recv(*fd, input, read_bytes, MSG_DONTWAIT);
  if (got > 0) bytes_read += got;
  else if (*fd >= 0 && (got == 0 || errno != EAGAIN)) close(*fd), *fd = -1, closed++;
}

static int input_ended(int timeout_ms) {
  struct pollfd input = {.fd = 0, .events = POLLIN};
  char byte;
  return poll(&input, 1, timeout_ms) > 0 && read(0, &byte, 1) <= 0;
}

static void read_slowly_until_input_ends(void) {
  uint64_t begin_ns = now_ns();
  for (uint64_t turn = 0;; turn++) {
    uint64_t due_ns = begin_ns + turn * interval_ms * 1000000ull / count, now = now_ns();
    if (now > due_ns + LATE_NS_MAX) begin_ns += now - due_ns, due_ns = now; /* Stopped for a while: turns missed are left out. */
    while (now_ns() < due_ns)
      if (input_ended((due_ns - now_ns()) / 1000000 > 5 ? 5 : 1)) return;
    read_slowly(&fds[turn % count]);
  }
}

int main(int argc, char **argv) {
  if (argc != 4 && argc != 6) return fprintf(stderr, "usage: hold PORT PATH CONNECTIONS [READ_BYTES INTERVAL_MS]\n"), 2;
  port = atoi(argv[1]), path = argv[2], count = atoi(argv[3]);
  if (argc == 6) read_bytes = atoi(argv[4]), interval_ms = atoi(argv[5]);
  tls_start(TLS_GROUPS);
  if (count < 1 || count > CONNECTIONS_MAX || read_bytes > INPUT_BYTES) return fprintf(stderr, "hold: number out of range\n"), 2;
  fds = calloc(count, sizeof *fds), sessions = calloc(count, sizeof *sessions);
  for (int i = 0; i < count; i++) {
    fds[i] = open_connection(&sessions[i]);
    if (!read_bytes) read_response(&sessions[i], fds[i]);
  }
  if (read_bytes) {
    struct pollfd last = {.fd = fds[count - 1], .events = POLLIN};
    poll(&last, 1, 10000);
  }
  puts("ready"), fflush(stdout);
  if (read_bytes) read_slowly_until_input_ends();
  else while (!input_ended(-1)) {}
  for (int i = 0; i < count; i++) {
    char byte;
    if (!read_bytes && recv(fds[i], &byte, 1, MSG_DONTWAIT) == 0) closed++;
  }
  printf("{\"connections\": %d, \"closed_by_server\": %lu, \"bytes_read\": %lu}\n", count, closed, bytes_read);
}
