/* A server whose latency is known: it answers the requests, in the order they come, after 2.0, 2.2 … 21.8 ms (each of 100
 * delays once in 100 requests), so that the true percentiles are those of this list.
 *
 *   cc -O2 -o delays delays.c;  ./delays PORT [FACTOR]    (FACTOR times as long, by default 1)
 */
#define _GNU_SOURCE
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 1 << 12, EVENTS_MAX = 256, DELAYS = 100, STRIDE = 37 /* prime to DELAYS: the list, shuffled */ };
enum { FIRST_NANOS = 2000000, STEP_NANOS = 200000 };

/* Connection-option for ab, which speaks HTTP/1.0. */
static const char response[] = "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nContent-Length: 10\r\n\r\n0123456789";
static long long due[CONNECTIONS_MAX]; /* 0: no response is due */
static int is_last[CONNECTIONS_MAX];   /* the client said that it is its last request */
static int last_fd;
static long long factor = 1;

static long long now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * 1000000000LL + time.tv_nsec;
}

static int listen_on(int port) {
  int on = 1, listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(listener, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* accepted sockets inherit it */
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  if (bind(listener, (void *)&address, sizeof address) || listen(listener, 4096)) perror("bind"), exit(1);
  return listener;
}

static void receive(int fd) {
  static unsigned requests;
  char input[16384];
  ssize_t length = recv(fd, input, sizeof input - 1, MSG_DONTWAIT);
  if (length <= 0) {
    due[fd] = 0;
    close(fd);
    return;
  }
  input[length] = 0;
  is_last[fd] = strstr(input, "\r\nConnection: close\r\n") != NULL;
  due[fd] = now() + factor * (FIRST_NANOS + (long long)(requests++ * STRIDE % DELAYS) * STEP_NANOS);
}

/* Answers what is due; returns when the next is. */
static long long answer(void) {
  long long next = now() + 1000000000LL;
  for (int fd = 0; fd <= last_fd; fd++) {
    if (!due[fd]) continue;
    if (due[fd] <= now()) {
      due[fd] = 0;
      if (send(fd, response, sizeof response - 1, MSG_NOSIGNAL) < 0) continue; /* its end is read next */
      if (is_last[fd]) close(fd);
    } else if (due[fd] < next) {
      next = due[fd];
    }
  }
  return next;
}

int main(int argc, char **argv) {
  if (argc < 2) return fprintf(stderr, "usage: %s PORT [FACTOR]\n", argv[0]), 2;
  if (argc > 2) factor = atoll(argv[2]);
  int listener = listen_on(atoi(argv[1])), epoll = epoll_create1(0);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener}, events[EVENTS_MAX];
  epoll_ctl(epoll, EPOLL_CTL_ADD, listener, &event);
  prctl(PR_SET_TIMERSLACK, 1);
  for (;;) {
    long long wait = answer() - now();
    struct timespec timeout = {.tv_sec = wait > 0 ? wait / 1000000000 : 0, .tv_nsec = wait > 0 ? wait % 1000000000 : 0};
    int count = epoll_pwait2(epoll, events, EVENTS_MAX, &timeout, NULL);
    for (int i = 0; i < count; i++) {
      if (events[i].data.fd != listener) {
        receive(events[i].data.fd);
        continue;
      }
      int fd;
      while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= CONNECTIONS_MAX) return fprintf(stderr, "too many connections\n"), 1;
        if (fd > last_fd) last_fd = fd;
        event = (struct epoll_event){.events = EPOLLIN | EPOLLRDHUP, .data.fd = fd};
        epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
      }
    }
  }
}
