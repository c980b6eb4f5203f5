/* Sends the datagrams of a file to a UDP port as fast as the kernel takes them, from many addresses of the loopback, until killed.
 *
 *   cc -O2 -o datagrams datagrams.c;  ./datagrams FILE PORT ADDRESSES
 *
 * FILE has each datagram after its length in two bytes, the higher first. The addresses are 127.9.0.1 and those after it; no
 * program reads what comes back to them.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>

enum { BATCH = 32, DATAGRAMS_MAX = 65536, ADDRESSES_MAX = 4096 };

static unsigned char content[64 << 20];
static struct iovec datagrams[DATAGRAMS_MAX];
static int sockets[ADDRESSES_MAX];

static void fail(const char *what) { perror(what), exit(2); }

int main(int argc, char **argv) {
  if (argc != 4) return fprintf(stderr, "usage: datagrams FILE PORT ADDRESSES\n"), 2;
  FILE *file = fopen(argv[1], "rb");
  if (!file) fail(argv[1]);
  size_t bytes = fread(content, 1, sizeof content, file), at = 0, count = 0;
  for (; at + 2 <= bytes && count < DATAGRAMS_MAX; count++) {
    size_t length = content[at] << 8 | content[at + 1];
    datagrams[count] = (struct iovec){content + at + 2, length}, at += 2 + length;
  }
  int addresses = atoi(argv[3]);
  if (at != bytes || !count || addresses < 1 || addresses > ADDRESSES_MAX) return fprintf(stderr, "datagrams: bad input\n"), 2;
  struct sockaddr_in server = {.sin_family = AF_INET, .sin_port = htons(atoi(argv[2])), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
  for (int i = 0; i < addresses; i++) {
    struct sockaddr_in own = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f090001 + i)};
    int small = 4096;
    sockets[i] = socket(AF_INET, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    if (sockets[i] < 0 || bind(sockets[i], (struct sockaddr *)&own, sizeof own)) fail("bind");
    setsockopt(sockets[i], SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  }
  for (size_t next = 0, turn = 0;; turn++) {
    struct mmsghdr batch[BATCH] = {0};
    for (int i = 0; i < BATCH; i++, next++)
      batch[i].msg_hdr = (struct msghdr){.msg_name = &server, .msg_namelen = sizeof server, .msg_iov = &datagrams[next % count], .msg_iovlen = 1};
    /* Errors are replies of the network to earlier datagrams; the flood goes on. */
    sendmmsg(sockets[turn % addresses], batch, BATCH, 0);
  }
}
