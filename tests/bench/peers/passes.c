// Collectives of processes that each have memory of their own and share windows, with the copies and folds of
// transport/collective, in its order and in rounds of its size, and nothing else: the least that this way takes.
//
//     passes OPERATION PROCESSES BYTES CALLS
//
// prints the seconds of all calls, those of the processors for them, and those in which a process could run but had no
// processor. A participant brings BYTES of float32.

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

enum { BLOCK = 2 << 20, CACHED = 2048, PROCESSES = 64, COLLAPSE = 25 /* MADV_COLLAPSE, of Linux 6.1 */ };
static const size_t HUGE = 2 << 20;

static int processes, me;
static char* window[PROCESSES];  // what each process writes: a block of this round, and that of the one before
static float *operand, *result;
static pthread_barrier_t* together;

// meet returns when the windows of a round are written: so all are through with the round before.
static void meet(void) { pthread_barrier_wait(together); }

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

// Memory in huge pages, which the kernel gives shared memory only if it is asked for each by itself.
static void* memory(size_t bytes, int flags) {
  char* p = mmap(NULL, bytes + HUGE, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  p += -(uintptr_t)p & (HUGE - 1);
  madvise(p, bytes, MADV_HUGEPAGE);
  for (size_t at = 0; at < bytes; at += HUGE) p[at] = 1;
  madvise(p, bytes & ~(HUGE - 1), COLLAPSE);
  memset(p, 1, bytes);
  return p;
}

// Copies past the caches: what is read next stays in them.
static void stream(void* to, const void* from, size_t bytes) {
#ifdef __AVX2__
  size_t n = bytes / 32;
  for (size_t i = 0; i < n; i++)
    _mm256_stream_si256((__m256i*)to + i, _mm256_loadu_si256((const __m256i*)from + i));
  _mm_sfence();
#else
  memcpy(to, from, bytes);
#endif
}

static void fold(float* to, const float** from, int count, size_t bytes) {
  size_t n = bytes / sizeof *to;
  for (size_t at = 0; at < n; at += CACHED) {
    size_t end = smaller(n, at + CACHED);
    for (size_t i = at; i < end; i++) to[i] = from[0][i] + from[1][i];
    for (int k = 2; k < count; k++)
      for (size_t i = at; i < end; i++) to[i] += from[k][i];
  }
}

static char* block(int p, int round) { return window[p] + round % 2 * BLOCK; }

// What process p has written of a round for process q: a piece for each process but p.
static char* piece(int p, int q, size_t each, int round) { return block(p, round) + (q - (q > p)) * each; }

static void all_gather(size_t bytes) {
  int round = 0;
  for (size_t at = 0; at < bytes; at += BLOCK, round++) {
    size_t n = smaller(BLOCK, bytes - at);
    char *in = (char*)operand + at, *out = (char*)result + at;
    memcpy(block(me, round), in, n);
    meet();
    for (int p = 0; p < processes; p++) stream(out + p * bytes, p == me ? in : block(p, round), n);
  }
}

// An all-to-all or, where folds is set, a reduce-scatter: the parts of an operand go to one process each.
static void parts(size_t bytes, bool folds) {
  size_t part = bytes / processes, each = BLOCK / (processes - 1) & ~63;
  const float* from[PROCESSES];
  int round = 0;
  for (size_t at = 0; at < part; at += each, round++) {
    size_t n = smaller(each, part - at);
    char *in = (char*)operand + at, *out = (char*)result + at;
    for (int q = 0; q < processes; q++)
      if (q != me) memcpy(piece(me, q, each, round), in + q * part, n);
    meet();
    for (int p = 0; p < processes; p++) {
      from[p] = (float*)(p == me ? in + me * part : piece(p, me, each, round));
      if (!folds) stream(out + p * part, from[p], n);
    }
    if (folds) fold((float*)out, from, processes, n);
  }
}

static void all_to_all(size_t bytes) { parts(bytes, false); }

static void reduce_scatter(size_t bytes) { parts(bytes, true); }

// Two fold everything each. Of more, each folds a part of a block, and shows it to the others in a round of its own.
static void all_reduce(size_t bytes) {
  const float* from[PROCESSES];
  int round = 0;
  for (size_t at = 0; at < bytes; at += BLOCK, round++) {
    size_t n = smaller(BLOCK, bytes - at), part = n / processes;
    char *in = (char*)operand + at, *out = (char*)result + at;
    if (processes == 2) {
      memcpy(block(me, round), in, n);
      meet();
      from[0] = (float*)in, from[1] = (float*)block(!me, round);
      fold((float*)out, from, 2, n);
      continue;
    }
    for (int q = 0; q < processes; q++)
      if (q != me) memcpy(piece(me, q, part, 0), in + q * part, part);
    meet();
    for (int p = 0; p < processes; p++) from[p] = (float*)(p == me ? in + me * part : piece(p, me, part, 0));
    fold((float*)(out + me * part), from, processes, part);
    memcpy(block(me, 1), out + me * part, part);
    meet();
    for (int p = 0; p < processes; p++)
      if (p != me) memcpy(out + p * part, block(p, 1), part);
  }
}

// Fails where the result is not what it has to be: process p has brought p + 1, everywhere.
static void check(bool folds, size_t results) {
  size_t n = results / sizeof *result;
  for (size_t i = 0; i < n; i++) {
    float want = folds ? processes * (processes + 1) / 2.f : i / (n / processes) + 1.f;
    if (result[i] != want) {
      fprintf(stderr, "process %d has %g at %zu, want %g\n", me, result[i], i, want);
      exit(1);
    }
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
}

// The processor time of this process, and the time in which it could run but had no processor. See schedstat in Linux'
// Documentation/scheduler/sched-stats.rst.
static void used(double* ran, double* queued) {
  unsigned long long run, wait;
  FILE* f = fopen("/proc/self/schedstat", "r");
  if (!f || fscanf(f, "%llu %llu", &run, &wait) != 2) {
    perror("/proc/self/schedstat");
    exit(1);
  }
  fclose(f);
  *ran = run / 1e9, *queued = wait / 1e9;
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*passes)(size_t bytes);
  } operations[] = {{"AllReduce", all_reduce},
                    {"AllGather", all_gather},
                    {"AllToAll", all_to_all},
                    {"ReduceScatter", reduce_scatter}};
  void (*passes)(size_t) = NULL;
  for (int i = 0; argc == 5 && i < 4; i++)
    if (!strcmp(argv[1], operations[i].name)) passes = operations[i].passes;
  if (!passes || (processes = atoi(argv[2])) < 2 || processes > PROCESSES) {
    fprintf(stderr, "usage: passes AllReduce|AllGather|AllToAll|ReduceScatter PROCESSES BYTES CALLS\n");
    return 2;
  }
  size_t bytes = strtoull(argv[3], NULL, 10), results = bytes;
  int calls = atoi(argv[4]);
  if (passes == all_gather) results *= processes;
  if (passes == reduce_scatter) results /= processes;
  for (int p = 0; p < processes; p++) window[p] = memory(2 * BLOCK, MAP_SHARED);
  together = memory(sizeof *together, MAP_SHARED);
  double* spent = memory(processes * 2 * sizeof *spent, MAP_SHARED);  // as used says, of each process
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(together, &shared, processes);
  for (me = 0; me < processes - 1; me++)
    if (!fork()) break;
  operand = memory(bytes, MAP_PRIVATE), result = memory(results, MAP_PRIVATE);
  for (size_t i = 0; i < bytes / sizeof *operand; i++) operand[i] = me + 1;
  passes(bytes);
  meet();
  double before[2], *after = spent + 2 * me;
  used(before, before + 1);
  double start = now();
  for (int i = 0; i < calls; i++) {
    passes(bytes);
    meet();
  }
  double seconds = now() - start;
  used(after, after + 1);
  for (int i = 0; i < 2; i++) after[i] -= before[i];
  check(passes == all_reduce || passes == reduce_scatter, results);
  if (me < processes - 1) return 0;
  for (int status; wait(&status) > 0;)
    if (status) return 1;
  double ran = 0, queued = 0;
  for (int p = 0; p < processes; p++) ran += spent[2 * p], queued += spent[2 * p + 1];
  printf("%.9f %.9f %.9f\n", seconds, ran, queued);
  return 0;
}
