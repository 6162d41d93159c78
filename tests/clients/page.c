// The part of docs/guides/c-api.md about programs, in a function that has what it leaves to the reader: page ADDRESS.
// tests/test_docs.py writes it to a file, with a check around each call.
#include "check.h"

#define EACH(name, operation, number)                                                            \
  "module @" name " attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 2 : i32} {\n" \
  " func.func public @main(%x: tensor<1xf32>) -> tensor<1xf32> {\n"                              \
  "  %c = stablehlo.constant dense<" number "> : tensor<1xf32>\n"                                \
  "  %0 = stablehlo." operation " %x, %c : tensor<1xf32>\n  return %0 : tensor<1xf32> } }"

static int64_t two[] = {2};

static pathways_executable each(pathways_session s, const char* code, const int32_t* devices) {
  pathways_tiles rows = {1, two};
  pathways_compile_options o = {.struct_size = sizeof o, .code = code, .code_size = strlen(code), .devices = devices,
                                .num_devices = 2, .num_replicas = 2, .outputs = &rows, .num_outputs = 1};
  pathways_executable e;
  OK(pathways_compile(s, &o, &e));
  return e;
}

static void play(pathways_session session) {
  float numbers[] = {1, 2}, results[2];
  int32_t devices_of_a[] = {0, 1}, devices_of_b[] = {2, 3};
  pathways_executable a = each(session, EACH("a", "multiply", "2.0"), devices_of_a);
  pathways_executable b = each(session, EACH("b", "add", "1.0"), devices_of_b);
  pathways_host_options like = {.struct_size = sizeof like, .type = PATHWAYS_F32, .num_dims = 1, .dims = two,
                                .tiles = {1, two}, .devices = devices_of_a, .num_devices = 2};
  pathways_host_options data = like;
  data.data = numbers;
  pathways_array in, out;
  OK(pathways_array_from_host(session, &data, &in));
#include "play.inc"
  read_into(out, PATHWAYS_WHOLE, results, sizeof results);
  CHECK(results[0] == 3 && results[1] == 5);
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  pathways_session session = open_session(argv[1], 4);
  play(session);
  OK(pathways_drop(session));
  return finish();
}
