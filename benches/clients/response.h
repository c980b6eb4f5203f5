/* Reads responses from a byte stream as far as a checking client must: status, length, whether the connection stays. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct response_head {
  int status;
  int64_t content_bytes; /* -1: not said */
  int closes;
};

/* Parses a whole head, which ends with its empty line. False if it is no HTTP/1 response. */
static int response_head_parse(const char *head, size_t head_bytes, struct response_head *parsed) {
  if (head_bytes < 15 || memcmp(head, "HTTP/1.", 7)) return 0;
  *parsed = (struct response_head){.status = atoi(head + 9), .content_bytes = -1, .closes = head[7] == '0'};
  const char *end = head + head_bytes, *line = memchr(head, '\n', head_bytes);
  while (line && ++line < end) {
    if ((line[0] | 32) == 'c') {
      if (!strncasecmp(line, "content-length:", 15)) parsed->content_bytes = atoll(line + 15);
      else if (!strncasecmp(line, "connection:", 11)) parsed->closes = !strncasecmp(line + 11 + strspn(line + 11, " "), "close", 5);
    }
    line = memchr(line, '\n', end - line);
  }
  return 1;
}

static int response_has_content(int status) { return status != 304 && status != 204 && status >= 200; }
