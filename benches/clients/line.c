/* Runs a command at the end of a slow line: in a network of its own, whose packets are delayed.
 *
 *   cc -O2 -o line line.c;  ./line DELAY_MS BITS_PER_SECOND LOSS CONGESTION COMMAND [WORD]...
 *
 * Each packet is sent at the line's rate and arrives DELAY_MS later, in either direction, so that a round trip takes twice
 * that. A share of LOSS (0 to 1) of the packets is lost, chosen at random, other ones in each run. The command reaches this side as 10.99.0.1; what listens there must do so on that address or on all. Connections
 * have this congestion control, as far as they are accepted on this side. Needs root and /dev/net/tun.
 * Ends with the exit status of the command.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PACKET_BYTES_MAX = 2048, PACKETS_MAX = 4096 };

/* Packets in one direction, in a ring. */
struct direction {
  int from, to;
  uint64_t free_ns; /* when the line has sent all that it was given */
  unsigned first, count;
  struct packet {
    uint64_t due_ns;
    size_t bytes;
    char data[PACKET_BYTES_MAX];
  } packets[PACKETS_MAX];
};

static struct direction directions[2];
static uint64_t delay_ns;
static double bits_per_second, loss;

static void fail(const char *what) { perror(what), exit(2); }

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static void run(const char *command) {
  if (system(command)) fprintf(stderr, "line: failed: %s\n", command), exit(2);
}

/* This side's end of the line, in the network of the caller. */
static int end_open(const char *own, const char *other, const char *congestion) {
  struct ifreq request = {.ifr_flags = IFF_TUN | IFF_NO_PI};
  strcpy(request.ifr_name, "line0");
  int fd = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0 || ioctl(fd, TUNSETIFF, &request)) fail("/dev/net/tun");
  char command[512];
  snprintf(command, sizeof command,
           "ip address add %s peer %s dev line0 && ip link set line0 up mtu 1500 txqueuelen 4096 && "
           "ip route replace %s dev line0 src %s congctl %s", own, other, other, own, congestion);
  return run(command), fd;
}

static void descriptor_send(int socket, int fd) {
  char byte = 0, control[CMSG_SPACE(sizeof fd)] = "";
  struct iovec piece = {&byte, 1};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  struct cmsghdr *header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof fd);
  memcpy(CMSG_DATA(header), &fd, sizeof fd);
  if (sendmsg(socket, &message, 0) != 1) fail("sendmsg");
}

static int descriptor_receive(int socket) {
  char byte, control[CMSG_SPACE(sizeof(int))];
  struct iovec piece = {&byte, 1};
  struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1 || !CMSG_FIRSTHDR(&message)) exit(2); /* The other has said why. */
  int fd;
  memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof fd);
  return fd;
}

static void direction_take(struct direction *direction) {
  while (direction->count < PACKETS_MAX) {
    struct packet *packet = &direction->packets[(direction->first + direction->count) % PACKETS_MAX];
    ssize_t bytes = read(direction->from, packet->data, sizeof packet->data);
    if (bytes <= 0) return;
    uint64_t now = now_ns(), begin_ns = direction->free_ns > now ? direction->free_ns : now;
    direction->free_ns = begin_ns + (uint64_t)(bytes * 8 * 1e9 / bits_per_second);
    if (drand48() < loss) continue;
    packet->bytes = bytes, packet->due_ns = direction->free_ns + delay_ns, direction->count++;
  }
}

/* Sends the packets that are due; returns the time of the next one. */
static uint64_t direction_give(struct direction *direction) {
  for (; direction->count; direction->count--, direction->first = (direction->first + 1) % PACKETS_MAX) {
    struct packet *packet = &direction->packets[direction->first];
    if (packet->due_ns > now_ns()) return packet->due_ns;
    if (write(direction->to, packet->data, packet->bytes) < 0) { /* The other side is full or gone: lost, as on any line. */ }
  }
  return UINT64_MAX;
}

static void carry(pid_t command) {
  for (;;) {
    int status;
    if (waitpid(command, &status, WNOHANG) == command) exit(WIFEXITED(status) ? WEXITSTATUS(status) : 2);
    uint64_t due_ns = now_ns() + 20000000; /* So often it is seen whether the command has ended. */
    for (int i = 0; i < 2; i++) {
      direction_take(&directions[i]);
      uint64_t next_ns = direction_give(&directions[i]);
      if (next_ns < due_ns) due_ns = next_ns;
    }
    uint64_t now = now_ns(), wait_ns = due_ns > now ? due_ns - now : 0;
    struct timespec wait = {.tv_sec = wait_ns / 1000000000, .tv_nsec = wait_ns % 1000000000};
    struct pollfd ends[2] = {{.fd = directions[0].from, .events = POLLIN}, {.fd = directions[1].from, .events = POLLIN}};
    ppoll(ends, 2, &wait, NULL);
  }
}

int main(int argc, char **argv) {
  if (argc < 6) return fprintf(stderr, "usage: line DELAY_MS BITS_PER_SECOND LOSS CONGESTION COMMAND [WORD]...\n"), 2;
  delay_ns = (uint64_t)(atof(argv[1]) * 1e6), bits_per_second = atof(argv[2]), loss = atof(argv[3]);
  srand48(now_ns());
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) fail("socketpair");
  int near = end_open("10.99.0.1", "10.99.0.2", argv[4]);
  pid_t command = fork();
  if (command < 0) fail("fork");
  if (!command) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (unshare(CLONE_NEWNET)) fail("unshare");
    descriptor_send(pair[0], end_open("10.99.0.2", "10.99.0.1", argv[4]));
    execvp(argv[5], argv + 5);
    fail(argv[5]);
  }
  close(pair[0]);
  int far = descriptor_receive(pair[1]);
  directions[0].from = directions[1].to = near, directions[1].from = directions[0].to = far;
  prctl(PR_SET_TIMERSLACK, 1000);
  carry(command);
}
