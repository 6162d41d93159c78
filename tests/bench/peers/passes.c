// The passes over memory that a collective takes where each participant has memory of its own and shares a window with
// the others, in the order in which transport/collective takes them. Nobody waits for anybody during a call, so what a
// window holds may be of another round: this is the time that the memory takes, and no collective.
//
//     passes OPERATION PROCESSES BYTES CALLS
//
// prints the seconds of all calls. A participant brings BYTES of float32.

#include <pthread.h>
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

enum { BLOCK = 2 << 20, CACHED = 2048, PROCESSES = 64 };

static int processes, me;
static char* window[PROCESSES];  // what each process writes: a block of a round, and one of what it has folded
static float *operand, *result;

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static void* memory(size_t bytes, int flags) {
  void* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    perror("mmap");
    exit(1);
  }
  madvise(p, bytes, MADV_HUGEPAGE);
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

// What process p has written of a round for process q: a piece for each process but p.
static char* piece(int p, int q, size_t each) { return window[p] + (q - (q > p)) * each; }

static void all_gather(size_t bytes) {
  for (size_t at = 0; at < bytes; at += BLOCK) {
    size_t n = smaller(BLOCK, bytes - at);
    char* in = (char*)operand + at, *out = (char*)result + at;
    memcpy(window[me], in, n);
    for (int p = 0; p < processes; p++) stream(out + p * bytes, p == me ? in : window[p], n);
  }
}

// An all-to-all or, where folds is set, a reduce-scatter: the parts of an operand go to one process each.
static void parts(size_t bytes, int folds) {
  size_t part = bytes / processes, each = BLOCK / (processes - 1) & ~63;
  const float* from[PROCESSES];
  for (size_t at = 0; at < part; at += each) {
    size_t n = smaller(each, part - at);
    char* in = (char*)operand + at, *out = (char*)result + at;
    for (int q = 0; q < processes; q++)
      if (q != me) memcpy(piece(me, q, each), in + q * part, n);
    for (int p = 0; p < processes; p++) {
      from[p] = (float*)(p == me ? in + me * part : piece(p, me, each));
      if (!folds) stream(out + p * part, from[p], n);
    }
    if (folds) fold((float*)out, from, processes, n);
  }
}

static void all_to_all(size_t bytes) { parts(bytes, 0); }

static void reduce_scatter(size_t bytes) { parts(bytes, 1); }

// Two fold everything each. Of more, each folds a part of a block, and shows it to the others.
static void all_reduce(size_t bytes) {
  const float* from[PROCESSES];
  for (size_t at = 0; at < bytes; at += BLOCK) {
    size_t n = smaller(BLOCK, bytes - at), part = processes == 2 ? n : n / processes & ~63;
    char* in = (char*)operand + at, *out = (char*)result + at;
    if (processes == 2) {
      memcpy(window[me], in, n);
      from[0] = (float*)in, from[1] = (float*)window[!me];
      fold((float*)out, from, 2, n);
      continue;
    }
    for (int q = 0; q < processes; q++)
      if (q != me) memcpy(piece(me, q, part), in + q * part, part);
    for (int p = 0; p < processes; p++) from[p] = (float*)(p == me ? in + me * part : piece(p, me, part));
    fold((float*)(out + me * part), from, processes, part);
    memcpy(window[me] + BLOCK, out + me * part, part);
    for (int p = 0; p < processes; p++)
      if (p != me) memcpy(out + p * part, window[p] + BLOCK, part);
  }
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + t.tv_nsec / 1e9;
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
  pthread_barrier_t* together = memory(sizeof *together, MAP_SHARED);
  pthread_barrierattr_t shared;
  pthread_barrierattr_init(&shared);
  pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(together, &shared, processes);
  for (me = 0; me < processes - 1; me++)
    if (!fork()) break;
  operand = memory(bytes, MAP_PRIVATE), result = memory(results, MAP_PRIVATE);
  passes(bytes);
  pthread_barrier_wait(together);
  double start = now();
  for (int i = 0; i < calls; i++) {
    passes(bytes);
    pthread_barrier_wait(together);
  }
  if (me < processes - 1) return 0;
  printf("%.9f\n", now() - start);
  while (wait(NULL) > 0) continue;
  return 0;
}
