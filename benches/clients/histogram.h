/* Latencies in nanoseconds, log-linear: 128 steps to each power of two, so a value is at most 0.8 % off. */
#include <stdint.h>

enum { HISTOGRAM_STEP_BITS = 7, HISTOGRAM_STEPS = 1 << HISTOGRAM_STEP_BITS };

struct histogram {
  uint64_t total, largest_ns, counts[64 * HISTOGRAM_STEPS];
};

static void histogram_add(struct histogram *histogram, uint64_t value_ns) {
  int shift = value_ns < HISTOGRAM_STEPS ? 0 : 63 - __builtin_clzll(value_ns) - HISTOGRAM_STEP_BITS + 1;
  histogram->counts[shift * HISTOGRAM_STEPS + (value_ns >> shift)]++;
  histogram->total++;
  if (value_ns > histogram->largest_ns) histogram->largest_ns = value_ns;
}

/* The value, in nanoseconds, that `share` (0 to 1) of all values don't exceed. */
static uint64_t histogram_quantile(const struct histogram *histogram, double share) {
  uint64_t wanted = (uint64_t)(share * histogram->total + 0.5), seen = 0;
  for (int i = 0; i < 64 * HISTOGRAM_STEPS; i++)
    if ((seen += histogram->counts[i]) >= wanted && seen) {
      int shift = i / HISTOGRAM_STEPS;
      uint64_t highest = (((uint64_t)(i % HISTOGRAM_STEPS) + 1) << shift) - 1;
      return highest < histogram->largest_ns ? highest : histogram->largest_ns;
    }
  return histogram->largest_ns;
}
