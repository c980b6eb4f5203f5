// The dynamic GET of the web99 workload, with and without ad rotation, as a FastCGI program: a peer of the module in
// examples/modules/web99. Tables are kept, and read again when the users' has changed. Wants DOCUMENT_ROOT and WEB99_DATA.

#define _GNU_SOURCE
#include <fcgiapp.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ADS = 360, AD_BYTES = 39, USER_BYTES = 15, USER_ID_FIRST = 10000, FILE_BYTES_MAX = 1 << 20 };

static const unsigned GROUPS[] = {0x30000000, 0x0f000000, 0x00f00000, 0x000ffc00, 0x000003ff};
static const char TAG[] = "<!WEB99CAD><IMG SRC=\"", TAG_END[] = "\"><!/WEB99CAD>";

struct table {
  char *bytes;
  size_t length;
};

struct choice {
  int ad, weight, is_expired;
};

static struct table users, ads;
static char content[FILE_BYTES_MAX];

static ssize_t read_file(const char *directory, const char *name, char *buffer, size_t size) {
  char path[PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", directory, name);
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return -1;
  ssize_t length = 0, got;
  while ((got = read(file, buffer + length, size - length)) > 0) length += got;
  close(file);
  return got < 0 ? -1 : length;
}

static void read_table(const char *directory, const char *name, struct table *table) {
  if (!table->bytes) table->bytes = malloc(FILE_BYTES_MAX);
  ssize_t length = read_file(directory, name, table->bytes, FILE_BYTES_MAX - 1);
  table->length = length > 0 ? length : 0;
  table->bytes[table->length] = 0;
}

static void refresh_tables(const char *directory) {
  static struct timespec seen;
  char path[PATH_MAX];
  struct stat status;
  snprintf(path, sizeof path, "%s/User.Personality", directory);
  if (stat(path, &status) != 0 || memcmp(&status.st_mtim, &seen, sizeof seen) == 0) return;
  seen = status.st_mtim;
  read_table(directory, "User.Personality", &users);
  read_table(directory, "Custom.Ads", &ads);
}

// The first ad after the user's last one that suits the user.
static struct choice choose(const char *directory, const char *cookie) {
  struct choice none = {-1, 0, 1};
  int user, last_ad, end = 0;
  if (sscanf(cookie, "user_id=%5d&last_ad=%3d%n", &user, &last_ad, &end) != 2 || (cookie[end] && cookie[end] != ';')) return none;
  refresh_tables(directory);
  size_t at = (size_t)(user - USER_ID_FIRST) * USER_BYTES;
  if (user < USER_ID_FIRST || at + USER_BYTES > users.length || last_ad >= ADS || ads.length < ADS * AD_BYTES) return none;
  unsigned personality = strtoul(users.bytes + at + 6, NULL, 16);
  for (int step = 1; step <= ADS; step++) {
    int ad = (last_ad + step) % ADS, weight = 0;
    const char *record = ads.bytes + ad * AD_BYTES;
    unsigned common = personality & strtoul(record + 6, NULL, 16), weights = strtoul(record + 15, NULL, 16);
    for (int group = 0; group < 5; group++)
      if (common & GROUPS[group]) weight += weights >> (16 - 4 * group) & 15;
    if (weight >= atoi(record + 24)) return (struct choice){ad, weight, time(NULL) > atol(record + 28)};
  }
  return none;
}

// Puts the ad's name, which has the length of what it replaces, into the tags.
static void put_ad(size_t length, int ad) {
  char name[40], *end = content + length, *found = content;
  size_t name_bytes = sprintf(name, "/file_set/dir%05d/class%d_%d", ad / 36, ad % 36 / 9, ad % 9);
  while ((found = memmem(found, end - found, TAG, sizeof TAG - 1))) {
    found += sizeof TAG - 1;
    if (found + name_bytes + sizeof TAG_END - 1 > end) return;
    if (memcmp(found + name_bytes, TAG_END, sizeof TAG_END - 1) == 0) memcpy(found, name, name_bytes);
  }
}

// The class of a file of the set; -1 if the path is of none.
static int class_of(const char *path) {
  int directory, class, number, end = 0;
  int found = sscanf(path, "/file_set/dir%5d/class%1d_%1d%n", &directory, &class, &number, &end);
  return found == 3 && !path[end] && strlen(path) == strlen("/file_set/dir00000/class0_0") && class <= 3 && number <= 8 ? class : -1;
}

static const char *parameter(FCGX_Request *request, const char *name) {
  const char *value = FCGX_GetParam(name, request->envp);
  return value ? value : "";
}

static void answer(FCGX_Request *request) {
  const char *path = parameter(request, "QUERY_STRING"), *cookie = strstr(parameter(request, "HTTP_COOKIE"), "my_cookie=");
  int class = class_of(path);
  ssize_t length = class < 0 ? -1 : read_file(parameter(request, "DOCUMENT_ROOT"), path, content, sizeof content);
  if (length < 0) {
    FCGX_PutS("Status: 404 Not Found\r\nContent-Type: text/html\r\nContent-Length: 0\r\n\r\n", request->out);
    return;
  }
  char set_cookie[80] = "";
  if (cookie) {
    struct choice choice = choose(parameter(request, "WEB99_DATA"), cookie + strlen("my_cookie="));
    sprintf(set_cookie, "Set-Cookie: found_cookie=Ad_id=%d&Ad_weight=%d&Expired=%d\r\n", choice.ad, choice.weight, choice.is_expired);
    if (choice.ad >= 0 && (class == 1 || class == 2)) put_ad(length, choice.ad);
  }
  char head[4096];
  const char *end = "\n</pre>\n</body></html>\n";
  int head_bytes = snprintf(head, sizeof head,
      "<html>\n<head><title>web99 dynamic reply</title></head>\n<body>\n<p>SERVER_SOFTWARE = %s\n<p>REMOTE_ADDR = %s\n"
      "<p>SCRIPT_NAME = %s\n<p>QUERY_STRING = %s\n<pre>\n",
      parameter(request, "SERVER_SOFTWARE"), parameter(request, "REMOTE_ADDR"), parameter(request, "SCRIPT_NAME"), path);
  FCGX_FPrintF(request->out, "Content-Type: text/html\r\n%sContent-Length: %ld\r\n\r\n", set_cookie, (long)(head_bytes + length + strlen(end)));
  FCGX_PutStr(head, head_bytes, request->out);
  FCGX_PutStr(content, length, request->out);
  FCGX_PutS(end, request->out);
}

int main(void) {
  FCGX_Request request;
  FCGX_Init();
  FCGX_InitRequest(&request, 0, 0);
  while (FCGX_Accept_r(&request) == 0) answer(&request);
  return 0;
}
