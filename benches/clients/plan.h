/* Requests, and the responses that they must get.
 *
 * A plan is a text file with one kind of request per line, and tabs between its fields:
 *   WEIGHT  STATUS  BODY_BYTES  PATTERN_OFFSET  PATH  FIELD-LINES
 * PATTERN_OFFSET is where in the repeated pattern the body begins (-1: the body isn't compared). FIELD-LINES are more
 * request fields, parted by `|`, or `-` for none.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct request_kind {
  char *head;         /* encoded, `Connection: close` not included */
  size_t head_bytes;  /* up to and without the empty line */
  int status;
  uint64_t body_bytes;
  long pattern_offset;
};

struct plan {
  struct request_kind *kinds;
  uint32_t count;
  /* Walker's alias method: one table look-up a draw, however many kinds there are. */
  double *threshold;
  uint32_t *alias;
  uint64_t random;
};

static uint64_t random_next(uint64_t *state) { /* xorshift64* */
  *state ^= *state >> 12, *state ^= *state << 25, *state ^= *state >> 27;
  return *state * 2685821657736338717ull;
}

static void plan_build_alias(struct plan *plan, const double *weights) {
  uint32_t count = plan->count, *small = malloc(count * sizeof *small), *large = malloc(count * sizeof *large), smalls = 0, larges = 0;
  double total = 0;
  for (uint32_t i = 0; i < count; i++) total += weights[i];
  plan->threshold = malloc(count * sizeof *plan->threshold), plan->alias = malloc(count * sizeof *plan->alias);
  for (uint32_t i = 0; i < count; i++) {
    plan->threshold[i] = weights[i] * count / total, plan->alias[i] = i;
    if (plan->threshold[i] < 1) small[smalls++] = i;
    else large[larges++] = i;
  }
  while (smalls && larges) {
    uint32_t poor = small[--smalls], rich = large[larges - 1];
    plan->alias[poor] = rich, plan->threshold[rich] -= 1 - plan->threshold[poor];
    if (plan->threshold[rich] < 1) small[smalls++] = rich, larges--;
  }
  while (larges) plan->threshold[large[--larges]] = 1;
  while (smalls) plan->threshold[small[--smalls]] = 1;
  free(small), free(large);
}

static struct request_kind *plan_draw(struct plan *plan) {
  if (plan->count == 1) return plan->kinds;
  uint64_t bits = random_next(&plan->random);
  uint32_t at = (uint32_t)((bits >> 32) * plan->count >> 32);
  return &plan->kinds[(uint32_t)bits * 0x1p-32 < plan->threshold[at] ? at : plan->alias[at]];
}

static struct plan plan_read(const char *path, const char *host, uint64_t seed) {
  struct plan plan = {.random = seed * 0x9e3779b97f4a7c15ull + 1};
  double *weights = NULL;
  FILE *file = fopen(path, "r");
  if (!file) perror(path), exit(2);
  char *line = NULL;
  size_t line_bytes = 0, capacity = 0;
  while (getline(&line, &line_bytes, file) > 0) {
    if (plan.count == capacity) {
      capacity = capacity ? capacity * 2 : 16;
      plan.kinds = realloc(plan.kinds, capacity * sizeof *plan.kinds), weights = realloc(weights, capacity * sizeof *weights);
    }
    struct request_kind *kind = &plan.kinds[plan.count];
    char target[2048], fields[2048] = "";
    if (sscanf(line, "%lf\t%d\t%lu\t%ld\t%2047[^\t]\t%2047[^\n]", &weights[plan.count], &kind->status, &kind->body_bytes,
               &kind->pattern_offset, target, fields) < 5)
      fprintf(stderr, "%s: malformed line: %s", path, line), exit(2);
    kind->head = malloc(strlen(target) + strlen(fields) * 2 + strlen(host) + 64);
    kind->head_bytes = sprintf(kind->head, "GET %s HTTP/1.1\r\nHost: %s\r\n", target, host);
    for (char *field = strtok(fields, "|"); field && strcmp(field, "-"); field = strtok(NULL, "|"))
      kind->head_bytes += sprintf(kind->head + kind->head_bytes, "%s\r\n", field);
    plan.count++;
  }
  if (!plan.count) fprintf(stderr, "%s: empty plan\n", path), exit(2);
  plan_build_alias(&plan, weights);
  free(weights), free(line), fclose(file);
  return plan;
}
