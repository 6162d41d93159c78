// What the C clients of the tests have in common.
#ifndef CHECK_H_
#define CHECK_H_

#include <openpathways.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                       \
  do {                                                                         \
    if (!(condition)) {                                                        \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      _exit(1);                                                                \
    }                                                                          \
  } while (0)

#define OK(call) check_ok(call, __FILE__, __LINE__, #call)
// FAILS expects an error with a code, whose text has a word in it.
#define FAILS(call, code, word) check_fails(call, code, word, __FILE__, __LINE__, #call)

#include <unistd.h>

static inline void check_ok(pathways_error e, const char* file, int line, const char* call) {
  if (e == 0) return;
  fprintf(stderr, "%s:%d: %s: code %d: %s\n", file, line, call, pathways_error_code(e), pathways_error_message(e));
  _exit(1);
}

static inline void check_fails(pathways_error e, pathways_code code, const char* word, const char* file, int line,
                               const char* call) {
  if (pathways_error_code(e) != code || strstr(pathways_error_message(e), word) == NULL) {
    fprintf(stderr, "%s:%d: %s: expected code %d and \"%s\", got %d: %s\n", file, line, call, code, word,
            pathways_error_code(e), pathways_error_message(e));
    _exit(1);
  }
  check_ok(pathways_drop(e), file, line, "pathways_drop");
}

// A wait that only a hang outlasts.
#define WAIT(future) OK(pathways_future_wait(future, 200000000000))

// ---- programs ----

#define ADD                                                                                         \
  "module @add { func.func public @main(%a: tensor<4xf32>, %b: tensor<4xf32>) -> tensor<4xf32> {\n" \
  "  %0 = stablehlo.add %a, %b : tensor<4xf32>\n  return %0 : tensor<4xf32> } }"

// The first argument is cut into rows on four devices, the second into columns; the
// results are their sum, cut into rows, and the sum of all its elements everywhere.
#define SHARDED                                                                                      \
  "module @sharded attributes {mhlo.num_partitions = 4 : i32, mhlo.num_replicas = 1 : i32} {\n"      \
  " func.func public @main(%a: tensor<8x8xf32> {mhlo.sharding = \"{devices=[4,1]<=[4]}\"},\n"        \
  "   %b: tensor<8x8xf32> {mhlo.sharding = \"{devices=[1,4]<=[4]}\"})\n"                             \
  "   -> (tensor<8x8xf32> {mhlo.sharding = \"{devices=[4,1]<=[4]}\"}, tensor<f32> {mhlo.sharding = " \
  "\"{replicated}\"}) {\n"                                                                           \
  "  %0 = stablehlo.add %a, %b : tensor<8x8xf32>\n"                                                  \
  "  %z = stablehlo.constant dense<0.0> : tensor<f32>\n"                                             \
  "  %1 = stablehlo.reduce(%0 init: %z) applies stablehlo.add across dimensions = [0, 1]\n"          \
  "    : (tensor<8x8xf32>, tensor<f32>) -> tensor<f32>\n"                                            \
  "  return %0, %1 : tensor<8x8xf32>, tensor<f32> } }"

static inline pathways_session open_session(const char* address, int devices) {
  pathways_session_options o = {.struct_size = sizeof o, .address = address, .devices = *address ? 0 : devices};
  pathways_session s;
  OK(pathways_session_open(&o, &s));
  return s;
}

// finish ends a program: what it dropped goes with the last callback of a device's that had begun,
// on that one's thread, and with the last bytes that a worker had been sent; which would look like a
// leak to the sanitizer where the process ends before.
static inline int finish(void) {
  char* pathways_stats(void);
  void pathways_free(char* text);
  for (int gone = 0, tries = 0; !gone; tries++) {
    char* stats = pathways_stats();
    gone = strstr(stats, "\"clients\":0") != NULL && strstr(stats, "\"events\":") == NULL;
    pathways_free(stats);
    CHECK(tries < 20000);
    if (!gone) usleep(1000);
  }
  puts("ok");
  return 0;
}

static inline pathways_executable compile(pathways_session s, const char* code, int partitions,
                                          const pathways_tiles* outputs, size_t n) {
  pathways_compile_options o = {.struct_size = sizeof o,
                                .code = code,
                                .code_size = strlen(code),
                                .num_partitions = partitions,
                                .outputs = outputs,
                                .num_outputs = n};
  pathways_executable e;
  OK(pathways_compile(s, &o, &e));
  return e;
}

static inline pathways_array vector(pathways_session s, const float* data, int64_t n) {
  pathways_host_options o = {.struct_size = sizeof o, .data = data, .type = PATHWAYS_F32, .num_dims = 1, .dims = &n};
  pathways_array a;
  OK(pathways_array_from_host(s, &o, &a));
  return a;
}

static inline void read_into(pathways_array a, int32_t shard, void* to, size_t size) {
  pathways_future f;
  OK(pathways_array_read(a, shard, to, size, &f));
  WAIT(f);
  OK(pathways_drop(f));
}

#endif
