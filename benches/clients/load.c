/* A load generator that checks what it gets: one thread, epoll, HTTP/1.1.
 *
 *   cc -O2 -o load load.c;  ./load --port PORT --plan FILE --pattern FILE [option VALUE]...
 *
 *     --connections N               how many (64)
 *     --seconds S                   how long is measured (3), after
 *     --warmup S                    a time that isn't (0.3)
 *     --rate N                      open loop: N requests a second, each due at its time, whether or not the server
 *                                   keeps up; its latency runs from when it was due. Without: closed loop.
 *     --pipeline N                  requests sent at once on a connection (1)
 *     --requests-per-connection N   the last one says `Connection: close` (0: no limit)
 *     --tls GROUPS                  TLS 1.3 with these groups (`P-256`, `X25519`); built with -DWITH_TLS -lssl -lcrypto
 *     --resume                      each handshake except a connection's first resumes the one before
 *     --fast-open                   the first request goes with the first packet of its connection (RFC 7413)
 *     --sources N                   source addresses 127.0.0.1 to 127.0.0.N, so that ports in TIME_WAIT don't run out (1)
 *     --verify-every N              of so many bodies one is compared byte for byte (16)
 *     --usage FILE                  counter of the server's CPU time: cgroup's cpuacct.usage or cpu.stat
 *     --seed N                      of the order of requests (1)
 *
 * Every response's status and length is checked. Prints one line of JSON; exits with 1 if any response was wrong.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stddef.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "histogram.h"
#include "plan.h"
#include "response.h"
#include "transport.h"

enum { PIPELINE_MAX = 64, HEAD_BYTES_MAX = 8192, EVENTS_MAX = 512, INPUT_BYTES = 64 << 10 };

static struct {
  int port, connections, pipeline, requests_per_connection, sources, verify_every;
  double seconds, warmup_seconds, rate;
  int resumes, fast_open;
  const char *usage_path, *tls_groups;
} options = {.connections = 64, .pipeline = 1, .sources = 1, .verify_every = 16, .seconds = 3, .warmup_seconds = 0.3};

struct connection {
  int fd;
  int awaits_connect, awaits_handshake, reading_body, closes, verifies;
  int is_idle;                              /* open loop: in the ring of idle connections */
  uint64_t body_left_bytes;
  size_t pattern_at;
  unsigned requests_sent;                   /* on this connection */
  unsigned outstanding, first_outstanding;  /* ring of what was asked and not yet answered */
  struct request_kind *asked[PIPELINE_MAX];
  uint64_t due_ns[PIPELINE_MAX];
  size_t head_bytes;                        /* of a head that came in pieces */
  char head[HEAD_BYTES_MAX];
  struct tls tls;
};

static struct plan plan;
static char *pattern;
static size_t pattern_bytes;
static struct connection *connections;
static int poller;

/* Open loop: connections without a request, in a ring, and the number of the next request that will be due. */
static struct connection **idle;
static unsigned idle_first, idle_count;
static uint64_t next_due, start_ns;

static int measuring, stopping;
static struct histogram latency;
static struct {
  uint64_t responses, body_bytes, verified, connects, resumed, retries;
  uint64_t connect_errors, early_closes, malformed, wrong_status, wrong_length, wrong_body;
} seen;

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static uint64_t errors(void) {
  return seen.connect_errors + seen.early_closes + seen.malformed + seen.wrong_status + seen.wrong_length + seen.wrong_body;
}

static void connection_open(struct connection *connection) {
  static unsigned opened;
  int on = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  if (fd < 0) perror("socket"), exit(2);
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (options.fast_open && setsockopt(fd, IPPROTO_TCP, TCP_FASTOPEN_CONNECT, &on, sizeof on)) perror("TCP_FASTOPEN_CONNECT"), exit(2);
  if (options.sources > 1) {
    /* The port is chosen at connect, so that one can serve several destinations and sources at a time. */
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    struct sockaddr_in source = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK + opened % options.sources)};
    if (bind(fd, (void *)&source, sizeof source)) perror("bind"), exit(2);
  }
  opened++, seen.connects += measuring;
  int is_idle = connection->is_idle;
  memset(connection, 0, offsetof(struct connection, head));
  connection->fd = fd, connection->awaits_connect = 1, connection->is_idle = is_idle;
  struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(options.port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (connect(fd, (void *)&server, sizeof server) && errno != EINPROGRESS) perror("connect"), exit(2);
  struct epoll_event event = {.events = EPOLLIN | EPOLLOUT | EPOLLET, .data.ptr = connection};
  epoll_ctl(poller, EPOLL_CTL_ADD, fd, &event);
}

/* Sends a batch. Its heads are small and nothing else is under way on the connection, so the kernel takes all at once. */
static void connection_send(struct connection *connection, uint64_t due_ns) {
  static char output[PIPELINE_MAX * 4608];
  size_t output_bytes = 0;
  int count = options.pipeline;
  if (options.requests_per_connection && options.requests_per_connection - (int)connection->requests_sent < count)
    count = options.requests_per_connection - connection->requests_sent;
  connection->first_outstanding = 0, connection->outstanding = count;
  for (int i = 0; i < count; i++) {
    struct request_kind *kind = connection->asked[i] = plan_draw(&plan);
    connection->due_ns[i] = due_ns;
    memcpy(output + output_bytes, kind->head, kind->head_bytes), output_bytes += kind->head_bytes;
    int last = ++connection->requests_sent == (unsigned)options.requests_per_connection;
    const char *end = last ? "Connection: close\r\n\r\n" : "\r\n";
    memcpy(output + output_bytes, end, strlen(end)), output_bytes += strlen(end);
  }
  ssize_t sent = tls_send(&connection->tls, connection->fd, output, output_bytes);
  if (sent < 0 && errno == EINPROGRESS) { /* Fast Open without a cookie yet: once it is connected. */
    connection->awaits_connect = 1, connection->requests_sent -= count, connection->outstanding = 0;
    return;
  }
  if (sent != (ssize_t)output_bytes && !stopping) seen.early_closes++;
}

static void idle_push(struct connection *connection) {
  connection->is_idle = 1;
  idle[(idle_first + idle_count++) % options.connections] = connection;
}

/* Open loop: gives due requests to idle connections. A connection that is being opened again waits for another turn. */
static void send_due(uint64_t now) {
  for (unsigned turns = idle_count; turns && !stopping; turns--) {
    uint64_t due_ns = start_ns + (uint64_t)(next_due * 1e9 / options.rate);
    if (due_ns > now) return;
    struct connection *connection = idle[idle_first];
    idle_first = (idle_first + 1) % options.connections, idle_count--;
    if (connection->awaits_connect) {
      idle_push(connection);
      continue;
    }
    connection->is_idle = 0, next_due++;
    connection_send(connection, due_ns);
  }
}

static void connection_ready(struct connection *connection) {
  if (!options.rate) {
    if (!stopping) connection_send(connection, now_ns());
    return;
  }
  if (!connection->is_idle) idle_push(connection);
  send_due(now_ns());
}

static void connection_reopen(struct connection *connection) {
  tls_close(&connection->tls), close(connection->fd);
  if (!stopping) connection_open(connection);
}

static int response_begins(struct connection *connection, const char *head, size_t head_bytes) {
  struct request_kind *kind = connection->asked[connection->first_outstanding];
  struct response_head parsed;
  if (!connection->outstanding || !response_head_parse(head, head_bytes, &parsed)) return seen.malformed++, 0;
  if (parsed.status != kind->status) return seen.wrong_status++, 0;
  if (!response_has_content(parsed.status)) parsed.content_bytes = 0;
  if (parsed.content_bytes != (int64_t)kind->body_bytes) return seen.wrong_length++, 0;
  connection->closes = parsed.closes, connection->reading_body = 1;
  connection->body_left_bytes = kind->body_bytes;
  connection->verifies = kind->pattern_offset >= 0 && kind->body_bytes && seen.responses % options.verify_every == 0;
  connection->pattern_at = kind->pattern_offset % pattern_bytes;
  return 1;
}

static int body_matches(struct connection *connection, const char *bytes, size_t count) {
  while (count) {
    size_t piece = pattern_bytes - connection->pattern_at < count ? pattern_bytes - connection->pattern_at : count;
    if (memcmp(bytes, pattern + connection->pattern_at, piece)) return 0;
    bytes += piece, count -= piece, connection->pattern_at = (connection->pattern_at + piece) % pattern_bytes;
  }
  return 1;
}

/* Takes body bytes; returns how many were the response's, or -1 if they are not what they must be. */
static ssize_t response_continues(struct connection *connection, const char *bytes, size_t count) {
  if (count > connection->body_left_bytes) count = connection->body_left_bytes;
  if (connection->verifies && !body_matches(connection, bytes, count)) return seen.wrong_body++, -1;
  connection->body_left_bytes -= count;
  if (measuring) seen.body_bytes += count;
  return count;
}

static void response_ends(struct connection *connection, uint64_t now) {
  if (measuring) {
    histogram_add(&latency, now - connection->due_ns[connection->first_outstanding]);
    seen.responses++, seen.verified += connection->verifies;
  }
  connection->first_outstanding++, connection->outstanding--, connection->reading_body = 0;
}

/* Splits input into responses. Returns false if the connection can't go on. */
static int handle_input(struct connection *connection, const char *input, size_t input_bytes) {
  uint64_t now = now_ns();
  while (input_bytes) {
    if (!connection->reading_body) {
      size_t kept = connection->head_bytes;
      const char *from = input, *end;
      if (kept) { /* Join to what came before. */
        size_t joined = HEAD_BYTES_MAX - kept < input_bytes ? HEAD_BYTES_MAX - kept : input_bytes;
        memcpy(connection->head + kept, input, joined), from = connection->head;
        end = memmem(from, kept + joined, "\r\n\r\n", 4);
        if (!end && joined == input_bytes) return connection->head_bytes += joined, 1;
      } else if (!(end = memmem(input, input_bytes, "\r\n\r\n", 4)) && input_bytes < HEAD_BYTES_MAX) {
        return memcpy(connection->head, input, input_bytes), connection->head_bytes = input_bytes, 1;
      }
      if (!end) return seen.malformed++, 0;
      size_t head_bytes = end + 4 - from;
      if (!response_begins(connection, from, head_bytes)) return 0;
      input += head_bytes - kept, input_bytes -= head_bytes - kept, connection->head_bytes = 0;
    }
    ssize_t taken = response_continues(connection, input, input_bytes);
    if (taken < 0) return 0;
    input += taken, input_bytes -= taken;
    if (connection->body_left_bytes == 0) {
      response_ends(connection, now);
      if (connection->closes && input_bytes) return seen.malformed++, 0;
    }
  }
  return 1;
}

/* A server may close a connection that it owes nothing, and a request may just then be on its way: a client sends it
 * again (RFC 9112, section 9.3.1). If it was the first on its connection, or its response had begun, it is an error. */
static void note_early_close(struct connection *connection) {
  int was_first = connection->requests_sent <= (unsigned)options.pipeline;
  int had_begun = connection->reading_body || connection->head_bytes || connection->first_outstanding;
  if (was_first || had_begun) seen.early_closes++;
  else seen.retries++;
}

static void drive_connection(struct connection *connection, uint32_t events) {
  static char input[INPUT_BYTES];
  if (connection->awaits_connect) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(connection->fd, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error) return seen.connect_errors++, connection_reopen(connection);
    if (!(events & EPOLLOUT)) return;
    connection->awaits_connect = 0, connection->awaits_handshake = tls_open(&connection->tls, connection->fd, options.resumes);
    if (!connection->awaits_handshake) return connection_ready(connection);
  }
  if (connection->awaits_handshake) {
    ssize_t done = tls_handshake(&connection->tls);
    if (done < 0 && errno == EAGAIN) return;
    if (done <= 0) return seen.connect_errors++, connection_reopen(connection);
    connection->awaits_handshake = 0, seen.resumed += measuring && tls_is_resumed(&connection->tls);
    return connection_ready(connection);
  }
  if (!(events & (EPOLLIN | EPOLLHUP | EPOLLERR))) return;
  for (;;) {
    ssize_t got = tls_receive(&connection->tls, connection->fd, input, sizeof input);
    if (got < 0 && errno == EAGAIN) return;
    if (got <= 0) {
      if (connection->outstanding && !stopping) note_early_close(connection);
      return connection_reopen(connection);
    }
    if (!handle_input(connection, input, got)) return connection_reopen(connection);
    if (connection->outstanding == 0) {
      int was_last = connection->requests_sent == (unsigned)options.requests_per_connection;
      if (connection->closes || was_last) return connection_reopen(connection);
      connection_ready(connection);
    }
    if (got < (ssize_t)sizeof input && !options.tls_groups) return; /* Drained: edge-triggered, more bytes make a new event. */
  }
}

static void run_until(uint64_t end_ns) {
  struct epoll_event events[EVENTS_MAX];
  for (uint64_t now = now_ns(); now < end_ns; now = now_ns()) {
    uint64_t wake_ns = end_ns;
    if (options.rate && !stopping) {
      send_due(now);
      uint64_t due_ns = start_ns + (uint64_t)(next_due * 1e9 / options.rate);
      if (idle_count && due_ns < wake_ns) wake_ns = due_ns;
    }
    uint64_t wait_ns = wake_ns > now ? wake_ns - now : 0;
    struct timespec wait = {.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
    int ready = epoll_pwait2(poller, events, EVENTS_MAX, &wait, NULL);
    for (int i = 0; i < ready; i++) drive_connection(events[i].data.ptr, events[i].events);
  }
}

/* Open loop: waits for the responses to due requests. A request without a response then counts with its age. */
static uint64_t finish_due(void) {
  uint64_t end_ns = now_ns(), give_up_ns = end_ns + 3000000000ull, unanswered = 0;
  uint64_t due_count = (uint64_t)((end_ns - start_ns) / 1e9 * options.rate);
  int busy = 1;
  while (busy && now_ns() < give_up_ns) {
    run_until(now_ns() + 1000000);
    busy = 0;
    for (int i = 0; i < options.connections; i++) busy |= connections[i].outstanding && connections[i].due_ns[0] < end_ns;
  }
  uint64_t now = now_ns();
  for (int i = 0; i < options.connections; i++)
    if (connections[i].outstanding && connections[i].due_ns[0] < end_ns) histogram_add(&latency, now - connections[i].due_ns[0]), unanswered++;
  for (; next_due < due_count; next_due++)
    histogram_add(&latency, now - start_ns - (uint64_t)(next_due * 1e9 / options.rate)), unanswered++;
  return unanswered;
}

static double usage_us(void) {
  char text[4096] = "";
  FILE *file = options.usage_path ? fopen(options.usage_path, "r") : NULL;
  if (!file) return 0;
  text[fread(text, 1, sizeof text - 1, file)] = 0;
  fclose(file);
  char *field = strstr(text, "usage_usec ");
  return field ? atof(field + 11) : atof(text) / 1e3; /* cgroup v1 counts nanoseconds */
}

static double own_cpu_us(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1e6 + usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
}

static void pattern_read(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file) perror(path), exit(2);
  pattern = malloc(1 << 20), pattern_bytes = fread(pattern, 1, 1 << 20, file);
  fclose(file);
}

static void read_options(int argc, char **argv) {
  static const struct option known[] = {
      {"port", 1, 0, 'p'},    {"plan", 1, 0, 'l'},   {"pattern", 1, 0, 'b'}, {"connections", 1, 0, 'c'},
      {"seconds", 1, 0, 's'}, {"warmup", 1, 0, 'w'}, {"rate", 1, 0, 'r'},    {"pipeline", 1, 0, 'q'},
      {"sources", 1, 0, 'a'}, {"verify-every", 1, 0, 'v'}, {"usage", 1, 0, 'u'}, {"seed", 1, 0, 'e'},
      {"requests-per-connection", 1, 0, 'k'}, {"tls", 1, 0, 't'}, {"resume", 0, 0, 'm'},
      {"fast-open", 0, 0, 'f'}, {0, 0, 0, 0}};
  const char *plan_path = NULL, *pattern_path = NULL;
  uint64_t seed = 1;
  for (int option; (option = getopt_long(argc, argv, "", known, NULL)) != -1;) switch (option) {
      case 'p': options.port = atoi(optarg); break;
      case 'l': plan_path = optarg; break;
      case 'b': pattern_path = optarg; break;
      case 'c': options.connections = atoi(optarg); break;
      case 's': options.seconds = atof(optarg); break;
      case 'w': options.warmup_seconds = atof(optarg); break;
      case 'r': options.rate = atof(optarg); break;
      case 'q': options.pipeline = atoi(optarg); break;
      case 'a': options.sources = atoi(optarg); break;
      case 'v': options.verify_every = atoi(optarg); break;
      case 'u': options.usage_path = optarg; break;
      case 'e': seed = strtoull(optarg, NULL, 10); break;
      case 'k': options.requests_per_connection = atoi(optarg); break;
      case 't': options.tls_groups = optarg; break;
      case 'm': options.resumes = 1; break;
      case 'f': options.fast_open = 1; break;
      default: exit(2);
    }
  if (!options.port || !plan_path || !pattern_path || options.connections < 1 || options.pipeline < 1 || options.pipeline > PIPELINE_MAX ||
      options.verify_every < 1 || (options.rate && options.pipeline > 1))
    fprintf(stderr, "usage: load --port PORT --plan FILE --pattern FILE [option VALUE]... (see load.c)\n"), exit(2);
  char host[32];
  sprintf(host, "127.0.0.1:%d", options.port);
  plan = plan_read(plan_path, host, seed);
  pattern_read(pattern_path);
  tls_start(options.tls_groups);
}

int main(int argc, char **argv) {
  signal(SIGPIPE, SIG_IGN);
  prctl(PR_SET_TIMERSLACK, 1000);
  read_options(argc, argv);
  poller = epoll_create1(0);
  connections = calloc(options.connections, sizeof *connections), idle = calloc(options.connections, sizeof *idle);
  start_ns = now_ns();
  for (int i = 0; i < options.connections; i++) connection_open(&connections[i]);
  run_until(now_ns() + (uint64_t)(options.warmup_seconds * 1e9));

  measuring = 1;
  double usage_before_us = usage_us(), own_before_us = own_cpu_us();
  uint64_t measured_from_ns = now_ns();
  run_until(measured_from_ns + (uint64_t)(options.seconds * 1e9));
  double seconds = (now_ns() - measured_from_ns) / 1e9, usage = usage_us() - usage_before_us, own = own_cpu_us() - own_before_us;
  uint64_t answered = seen.responses, body_bytes = seen.body_bytes;
  uint64_t unanswered = options.rate ? finish_due() : 0;
  stopping = 1;

  printf("{\"responses\": %lu, \"body_bytes\": %lu, \"verified_bodies\": %lu, \"seconds\": %.4f, \"server_cpu_us\": %.0f, \"client_cpu_us\": %.0f, "
         "\"connects\": %lu, \"resumed\": %lu, \"retries\": %lu, \"unanswered\": %lu, \"latency_us\": {\"p50\": %.1f, \"p90\": %.1f, \"p99\": %.1f, \"p999\": %.1f, \"max\": %.1f}, "
         "\"errors\": {\"connect\": %lu, \"early_close\": %lu, \"malformed\": %lu, \"status\": %lu, \"length\": %lu, \"body\": %lu}}\n",
         answered, body_bytes, seen.verified, seconds, usage, own, seen.connects, seen.resumed, seen.retries, unanswered, histogram_quantile(&latency, 0.5) / 1e3,
         histogram_quantile(&latency, 0.9) / 1e3, histogram_quantile(&latency, 0.99) / 1e3, histogram_quantile(&latency, 0.999) / 1e3,
         latency.largest_ns / 1e3, seen.connect_errors, seen.early_closes, seen.malformed, seen.wrong_status, seen.wrong_length, seen.wrong_body);
  return errors() ? 1 : 0;
}
