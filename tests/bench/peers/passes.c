// Collectives of processes that see each other's arrays, with the copies and folds of transport/collective/direct.go
// and nothing else: the least that this way takes.
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

enum { CACHED = 2048, PROCESSES = 64, COLLAPSE = 25 /* MADV_COLLAPSE, of Linux 6.1 */ };
static const size_t HUGE = 2 << 20;

static int processes, me;
static float *operand[PROCESSES], *result[PROCESSES];  // of each process
static pthread_barrier_t* together;

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

// The processes in an order that begins with this one, so that not all read the same one at a time.
static int from(int k) { return (me + k) % processes; }

static void all_gather(size_t bytes) {
  meet();
  for (int k = 0; k < processes; k++) stream((char*)result[me] + from(k) * bytes, operand[from(k)], bytes);
  meet();
}

// Returns where a part of an array is, of which there is one for each process.
static float* part_of(float* array, int p, size_t bytes) { return (float*)((char*)array + p * bytes); }

static void all_to_all(size_t bytes) {
  size_t part = bytes / processes;
  meet();
  for (int k = 0; k < processes; k++)
    stream(part_of(result[me], from(k), part), part_of(operand[from(k)], me, part), part);
  meet();
}

static void fold_part(float* to, size_t part) {
  const float* all[PROCESSES];
  for (int p = 0; p < processes; p++) all[p] = part_of(operand[p], me, part);
  fold(to, all, processes, part);
}

static void reduce_scatter(size_t bytes) {
  meet();
  fold_part(result[me], bytes / processes);
  meet();
}

static void all_reduce(size_t bytes) {
  size_t part = bytes / processes;
  meet();
  fold_part(part_of(result[me], me, part), part);
  meet();
  for (int k = 1; k < processes; k++)
    stream(part_of(result[me], from(k), part), part_of(result[from(k)], from(k), part), part);
  meet();
}

// Fails where the result is not what it has to be: process p has brought p + 1, everywhere.
static void check(bool folds, size_t results) {
  size_t n = results / sizeof(float);
  for (size_t i = 0; i < n; i++) {
    float want = folds ? processes * (processes + 1) / 2.f : i / (n / processes) + 1.f;
    if (result[me][i] != want) {
      fprintf(stderr, "process %d has %g at %zu, want %g\n", me, result[me][i], i, want);
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
  for (int p = 0; p < processes; p++) operand[p] = memory(bytes, MAP_SHARED), result[p] = memory(results, MAP_SHARED);
  together = memory(sizeof *together, MAP_SHARED);
  double* spent = memory(processes * 2 * sizeof *spent, MAP_SHARED);  // as used says, of each process
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(together, &shared, processes);
  for (me = 0; me < processes - 1; me++)
    if (!fork()) break;
  for (size_t i = 0; i < bytes / sizeof(float); i++) operand[me][i] = me + 1;
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
