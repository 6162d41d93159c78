// Slices and programs: programs ADDRESS. The first program is Figure 2 of the paper,
// on three slices of two devices.
#include "check.h"

#define EACH(name, operation, number)                                                        \
  "module @" name " attributes {mhlo.num_partitions = 1 : i32, mhlo.num_replicas = 2 : i32} {\n" \
  " func.func public @main(%x: tensor<1xf32>) -> tensor<1xf32> {\n"                          \
  "  %c = stablehlo.constant dense<" number "> : tensor<1xf32>\n"                            \
  "  %0 = stablehlo." operation " %x, %c : tensor<1xf32>\n  return %0 : tensor<1xf32> } }"
// 64 MiB of an argument's elements.
#define LARGE                                                                                       \
  "module @large { func.func public @main(%x: tensor<4xf32>) -> tensor<4x4194304xf32> {\n"          \
  "  %0 = stablehlo.broadcast_in_dim %x, dims = [0] : (tensor<4xf32>) -> tensor<4x4194304xf32>\n"   \
  "  return %0 : tensor<4x4194304xf32> } }"

static int64_t two[] = {2};

static pathways_slice slice_of(pathways_session s, int32_t* devices) {
  pathways_slice_options o = {.struct_size = sizeof o, .devices = 2};
  pathways_slice l;
  OK(pathways_slice_open(s, &o, &l));
  OK(pathways_slice_devices(l, devices, 2));
  return l;
}

static pathways_executable on(pathways_session s, const char* code, const int32_t* devices) {
  pathways_tiles cut = {1, two};
  pathways_compile_options o = {.struct_size = sizeof o, .code = code, .code_size = strlen(code), .devices = devices,
                                .num_devices = 2, .num_replicas = 2, .outputs = &cut, .num_outputs = 1};
  pathways_executable e;
  OK(pathways_compile(s, &o, &e));
  return e;
}

static pathways_host_options pair(const float* data, const int32_t* devices) {
  return (pathways_host_options){.struct_size = sizeof(pathways_host_options),
                                 .data = data,
                                 .type = PATHWAYS_F32,
                                 .num_dims = 1,
                                 .dims = two,
                                 .tiles = {1, two},
                                 .devices = devices,
                                 .num_devices = 2};
}

static pathways_array call(pathways_executable e, pathways_array x) {
  pathways_array y;
  OK(pathways_run(e, NULL, &x, 1, &y, 1, NULL));
  return y;
}

static pathways_array to(pathways_array x, const int32_t* devices) {
  pathways_array y;
  OK(pathways_array_copy(x, devices, 2, &y));
  return y;
}

static void is(pathways_array x, float first, float second) {
  float y[2];
  read_into(x, PATHWAYS_WHOLE, y, sizeof y);
  CHECK(y[0] == first && y[1] == second);
}

// Figure 2. What it is made of is dropped before it is played.
static void figure_2(pathways_session s, int plays) {
  int32_t at[3][2];
  pathways_slice slices[3];
  for (int i = 0; i < 3; i++) slices[i] = slice_of(s, at[i]);
  pathways_session_info_t si = {.struct_size = sizeof si};
  OK(pathways_session_info(s, &si));
  for (int i = 0; i < 3 && si.num_devices >= 6; i++)  // enough for all: none is shared
    for (int k = 0; k < 2; k++)
      for (int j = 0; j < i; j++) CHECK(at[i][k] != at[j][0] && at[i][k] != at[j][1]);
  pathways_executable a = on(s, EACH("a", "multiply", "2.0"), at[0]), b = on(s, EACH("b", "add", "1.0"), at[1]),
                      c = on(s, EACH("c", "divide", "2.0"), at[2]);

  OK(pathways_program_begin(s));
  pathways_host_options like = pair(NULL, at[0]);
  pathways_array v;
  OK(pathways_program_input(&like, &v));
  pathways_array x = call(a, v), x1 = to(x, at[1]), x2 = to(x, at[2]), y = call(b, x1), half = call(c, x2),
                 h0 = to(half, at[0]);
  pathways_array z = call(a, h0), all[] = {v, x, x1, x2, y, half, h0, z};
  pathways_program f;
  OK(pathways_program_end((pathways_array[]){y, z}, 2, &f));
  pathways_program_info_t pi = {.struct_size = sizeof pi};
  OK(pathways_program_info(f, &pi));
  CHECK(pi.num_inputs == 1 && pi.num_outputs == 2 && pi.num_nodes == 7);

  // What was captured has no contents, and knows what it would have.
  float nothing[2];
  pathways_future never;
  pathways_error err = pathways_array_read(y, PATHWAYS_WHOLE, nothing, sizeof nothing, &never);
  if (err == 0) {
    err = pathways_future_wait(never, 200000000000);
    OK(pathways_drop(never));
  }
  FAILS(err, PATHWAYS_FAILED_PRECONDITION, "no contents");
  pathways_array_info_t ai = {.struct_size = sizeof ai};
  OK(pathways_array_info(y, &ai));
  CHECK(ai.tiled && ai.dims[0] == 2 && ai.shard_dims[0] == 1);
  for (int i = 0; i < 8; i++) OK(pathways_drop(all[i]));
  OK(pathways_drop(a)), OK(pathways_drop(b)), OK(pathways_drop(c));
  for (int i = 0; i < 3; i++) OK(pathways_drop(slices[i]));

  for (int i = 0; i < plays; i++) {
    float data[] = {1 + (float)i, 2 + (float)i};
    pathways_host_options o = pair(data, at[0]);
    pathways_array in, out[2];
    OK(pathways_array_from_host(s, &o, &in));
    OK(pathways_program_play(f, &in, 1, out, 2));
    is(out[0], 2 * data[0] + 1, 2 * data[1] + 1);  // [3, 5] of [1, 2]
    is(out[1], 2 * data[0], 2 * data[1]);          // [2, 4]
    int32_t where[2];
    OK(pathways_array_devices(out[0], where, 2));
    CHECK(memcmp(where, at[1], sizeof where) == 0);
    is(in, data[0], data[1]);  // still the caller's
    OK(pathways_drop(in)), OK(pathways_drop(out[0])), OK(pathways_drop(out[1]));
  }
  OK(pathways_drop(f));
}

static pathways_array input(void) {
  int64_t four[] = {4};
  pathways_host_options like = {.struct_size = sizeof like, .type = PATHWAYS_F32, .num_dims = 1, .dims = four};
  pathways_array x;
  OK(pathways_program_input(&like, &x));
  return x;
}

static void holds(pathways_array x, float first) {
  float y[4];
  read_into(x, 0, y, sizeof y);
  for (int i = 0; i < 4; i++) CHECK(y[i] == first + (float)i);
}

// Constants, a result that is an input, one that is given twice, and a node that none reads.
static void results(pathways_session s) {
  pathways_executable add = compile(s, ADD, 0, NULL, 0);
  float ten[] = {10, 10, 10, 10}, up[] = {0, 1, 2, 3};
  pathways_array constant = vector(s, ten, 4), unread, x, y, out[4];
  OK(pathways_program_begin(s));
  x = input();
  OK(pathways_run(add, NULL, (pathways_array[]){x, constant}, 2, &y, 1, NULL));
  OK(pathways_run(add, NULL, (pathways_array[]){y, y}, 2, &unread, 1, NULL));
  pathways_program p;
  OK(pathways_program_end((pathways_array[]){y, x, y, constant}, 4, &p));
  OK(pathways_drop(constant));
  pathways_array in = vector(s, up, 4);
  OK(pathways_program_play(p, &in, 1, out, 4));
  OK(pathways_drop(p));
  OK(pathways_drop(in));
  holds(out[0], 10), holds(out[1], 0), holds(out[2], 10);
  float same[4];
  read_into(out[3], 0, same, sizeof same);
  CHECK(memcmp(same, ten, sizeof ten) == 0);
  OK(pathways_drop(out[0]));
  holds(out[2], 10);  // it has a handle of its own
  // Results are arrays like any other.
  OK(pathways_run(add, NULL, (pathways_array[]){out[1], out[2]}, 2, &in, 1, NULL));
  read_into(in, 0, same, sizeof same);
  for (int i = 0; i < 4; i++) CHECK(same[i] == 10 + 2 * (float)i);
}

static void wrong_slices(pathways_session s) {
  pathways_slice_options o = {.struct_size = sizeof o, .devices = 2};
  pathways_slice l = 0;
  FAILS(pathways_slice_open(s, NULL, &l), PATHWAYS_INVALID_ARGUMENT, "pathways_slice_options is NULL");
  FAILS(pathways_slice_open(s, &o, NULL), PATHWAYS_INVALID_ARGUMENT, "NULL");
  FAILS(pathways_slice_open(l, &o, &l), PATHWAYS_INVALID_ARGUMENT, "is 0");
  o.devices = 0;
  FAILS(pathways_slice_open(s, &o, &l), PATHWAYS_INVALID_ARGUMENT, "0 devices");
  o.devices = -1;
  FAILS(pathways_slice_open(s, &o, &l), PATHWAYS_INVALID_ARGUMENT, "-1 devices");
  o.devices = 2;
  o.topology = (int64_t[]){3, 1};
  o.num_topology = 2;
  FAILS(pathways_slice_open(s, &o, &l), PATHWAYS_INVALID_ARGUMENT, "3 by the topology");
  o.topology = (int64_t[]){INT64_MAX, INT64_MAX};
  FAILS(pathways_slice_open(s, &o, &l), PATHWAYS_INVALID_ARGUMENT, "the topology is");
  o.topology = NULL;
  FAILS(pathways_slice_open(s, &o, &l), PATHWAYS_INVALID_ARGUMENT, "their list");
  o.num_topology = 0;
  o.island = "atlantis";
  FAILS(pathways_slice_open(s, &o, &l), PATHWAYS_INVALID_ARGUMENT, "atlantis");
  o.island = NULL;
  o.devices = INT32_MAX;
  pathways_error err = pathways_slice_open(s, &o, &l);
  CHECK(pathways_error_code(err) == PATHWAYS_RESOURCE_EXHAUSTED);
  OK(pathways_drop(err));
  CHECK(l == 0);

  o.devices = 0;
  o.topology = (int64_t[]){1, 2};
  o.num_topology = 2;
  OK(pathways_slice_open(s, &o, &l));
  int32_t before[2] = {-1, -1}, after[2] = {-1, -1};
  FAILS(pathways_slice_devices(l, NULL, 2), PATHWAYS_INVALID_ARGUMENT, "NULL");
  OK(pathways_slice_devices(l, before, 2));
  CHECK(before[0] >= 0 && before[1] >= 0 && before[0] != before[1]);
  OK(pathways_slice_renew(l));
  OK(pathways_slice_devices(l, after, 2));
  CHECK(memcmp(before, after, sizeof after) == 0);
  float x;
  FAILS(pathways_array_read(l, 0, &x, sizeof x, &l), PATHWAYS_INVALID_ARGUMENT, "that of a slice");
  OK(pathways_drop(l));
  FAILS(pathways_slice_devices(l, after, 2), PATHWAYS_INVALID_ARGUMENT, "dropped");
  FAILS(pathways_slice_renew(l), PATHWAYS_INVALID_ARGUMENT, "dropped");
  FAILS(pathways_drop(l), PATHWAYS_INVALID_ARGUMENT, "dropped");
}

static void wrong_captures(pathways_session s, const char* address) {
  pathways_program p = 0;
  pathways_array x = 0, y;
  float up[] = {0, 1, 2, 3};
  int64_t four[] = {4};
  pathways_host_options like = {.struct_size = sizeof like, .type = PATHWAYS_F32, .num_dims = 1, .dims = four};
  pathways_executable add = compile(s, ADD, 0, NULL, 0);
  OK(pathways_program_abandon());  // there is none
  FAILS(pathways_program_input(&like, &x), PATHWAYS_FAILED_PRECONDITION, "captures no program");
  FAILS(pathways_program_end(&x, 1, &p), PATHWAYS_FAILED_PRECONDITION, "captures no program");
  FAILS(pathways_program_begin(0), PATHWAYS_INVALID_ARGUMENT, "is 0");

  OK(pathways_program_begin(s));
  FAILS(pathways_program_begin(s), PATHWAYS_FAILED_PRECONDITION, "already");
  FAILS(pathways_program_input(NULL, &x), PATHWAYS_INVALID_ARGUMENT, "is NULL");
  FAILS(pathways_program_input(&like, NULL), PATHWAYS_INVALID_ARGUMENT, "is NULL");
  like.data = up;
  FAILS(pathways_program_input(&like, &x), PATHWAYS_INVALID_ARGUMENT, "no data");
  like.data = NULL;
  like.type = 0;
  FAILS(pathways_program_input(&like, &x), PATHWAYS_INVALID_ARGUMENT, "program_input: there is no type 0");
  like.type = PATHWAYS_F32;
  like.num_devices = 1 << 20;
  FAILS(pathways_program_input(&like, &x), PATHWAYS_INVALID_ARGUMENT, "list");
  like.devices = (int32_t[]){-7};
  like.num_devices = 1;
  FAILS(pathways_program_input(&like, &x), PATHWAYS_INVALID_ARGUMENT, "-7");
  x = input();
  FAILS(pathways_program_end(NULL, 1, &p), PATHWAYS_INVALID_ARGUMENT, "NULL");
  FAILS(pathways_program_end(&x, 0, &p), PATHWAYS_INVALID_ARGUMENT, "empty");
  FAILS(pathways_program_end(&x, 1, NULL), PATHWAYS_INVALID_ARGUMENT, "NULL");
  FAILS(pathways_program_end((pathways_array[]){x, add}, 2, &p), PATHWAYS_INVALID_ARGUMENT, "that of an executable");
  FAILS(pathways_run(add, NULL, &x, 1, &y, 1, NULL), PATHWAYS_INVALID_ARGUMENT, "takes 2 arguments");
  // A session of another kind has no part in it, nor has another of the same kind.
  pathways_session other = open_session(address, 1);
  pathways_array foreign = vector(other, up, 4);
  pathways_executable there = compile(other, ADD, 0, NULL, 0);
  FAILS(pathways_program_end((pathways_array[]){x, foreign}, 2, &p), PATHWAYS_INVALID_ARGUMENT, "another session");
  OK(pathways_run(add, NULL, (pathways_array[]){x, x}, 2, &y, 1, NULL));
  FAILS(pathways_run(there, NULL, (pathways_array[]){foreign, foreign}, 2, &foreign, 1, NULL),
        PATHWAYS_INVALID_ARGUMENT, "two clients");
  // After all that it ends as if nothing had been wrong.
  OK(pathways_program_end(&y, 1, &p));
  CHECK(p != 0);

  pathways_array in = vector(s, up, 4), out[2] = {0, 0};
  FAILS(pathways_program_play(0, &in, 1, out, 1), PATHWAYS_INVALID_ARGUMENT, "is 0");
  FAILS(pathways_program_play(add, &in, 1, out, 1), PATHWAYS_INVALID_ARGUMENT, "that of an executable");
  FAILS(pathways_program_play(p, NULL, 1, out, 1), PATHWAYS_INVALID_ARGUMENT, "NULL");
  FAILS(pathways_program_play(p, &in, 1, NULL, 1), PATHWAYS_INVALID_ARGUMENT, "NULL");
  FAILS(pathways_program_play(p, &in, 1, out, 2), PATHWAYS_INVALID_ARGUMENT, "takes 1 arrays and returns 1");
  FAILS(pathways_program_play(p, (pathways_array[]){in, in}, 2, out, 1), PATHWAYS_INVALID_ARGUMENT,
        "takes 1 arrays and returns 1");
  FAILS(pathways_program_play(p, &foreign, 1, out, 1), PATHWAYS_INVALID_ARGUMENT, "another session");
  FAILS(pathways_program_play(p, &y, 1, out, 1), PATHWAYS_FAILED_PRECONDITION, "no contents");
  pathways_array shorter = vector(s, up, 3), away;
  FAILS(pathways_program_play(p, &shorter, 1, out, 1), PATHWAYS_INVALID_ARGUMENT, "differ from those of the capture");
  pathways_device_info_t second = {.struct_size = sizeof second};
  OK(pathways_device_info(s, 1, &second));
  OK(pathways_array_copy(in, &second.id, 1, &away));
  FAILS(pathways_program_play(p, &away, 1, out, 1), PATHWAYS_INVALID_ARGUMENT, "differ from those of the capture");
  OK(pathways_program_begin(s));
  FAILS(pathways_program_play(p, &in, 1, out, 1), PATHWAYS_FAILED_PRECONDITION, "captures a program");
  // An array of an earlier capture has nothing to say in this one.
  FAILS(pathways_program_end(&y, 1, &p), PATHWAYS_FAILED_PRECONDITION, "no contents");
  OK(pathways_program_abandon());
  CHECK(out[0] == 0);
  OK(pathways_program_play(p, &in, 1, out, 1));
  OK(pathways_drop(p));
  FAILS(pathways_program_play(p, &in, 1, out, 1), PATHWAYS_INVALID_ARGUMENT, "dropped");
  pathways_program_info_t pi = {.struct_size = sizeof pi};
  FAILS(pathways_program_info(p, &pi), PATHWAYS_INVALID_ARGUMENT, "dropped");
  FAILS(pathways_program_info(p, NULL), PATHWAYS_INVALID_ARGUMENT, "NULL");
  OK(pathways_drop(other));
}

// A node that fails, here for want of memory, says so in its results, and only there.
static void failures(void) {
  pathways_session_options o = {.struct_size = sizeof o, .address = "", .devices = 2, .memory_limit = 8 << 20};
  pathways_session s;
  OK(pathways_session_open(&o, &s));
  pathways_executable add = compile(s, ADD, 0, NULL, 0), large = compile(s, LARGE, 0, NULL, 0);
  pathways_array x, bad, good, out[2];
  OK(pathways_program_begin(s));
  x = input();
  OK(pathways_run(large, NULL, &x, 1, &bad, 1, NULL));
  OK(pathways_run(add, NULL, (pathways_array[]){x, x}, 2, &good, 1, NULL));
  pathways_program p;
  OK(pathways_program_end((pathways_array[]){bad, good}, 2, &p));
  float up[] = {0, 1, 2, 3}, y[4];
  pathways_array in = vector(s, up, 4);
  OK(pathways_program_play(p, &in, 1, out, 2));
  pathways_future f;
  OK(pathways_array_ready(out[0], &f));
  FAILS(pathways_future_wait(f, 200000000000), PATHWAYS_RESOURCE_EXHAUSTED, "large");
  OK(pathways_drop(f));
  read_into(out[1], 0, y, sizeof y);
  CHECK(y[3] == 6);
  OK(pathways_drop(s));
}

// ---- threads, and sessions that end ----

typedef struct {
  pathways_session session;
  pathways_program program;
  pathways_executable add;
} shared;

static void* plays(void* arg) {
  shared* h = arg;
  float up[] = {0, 1, 2, 3}, y[4];
  for (int i = 0; i < 50; i++) {
    pathways_array in = vector(h->session, up, 4), out;
    OK(pathways_program_play(h->program, &in, 1, &out, 1));
    read_into(out, 0, y, sizeof y);
    CHECK(y[3] == 6);
    OK(pathways_drop(in)), OK(pathways_drop(out));
  }
  return NULL;
}

// It captures while others play and run, and ends in the middle.
static void* captures(void* arg) {
  shared* h = arg;
  pathways_array y;
  for (int i = 0; i < 20; i++) {
    OK(pathways_program_begin(h->session));
    pathways_array x = input();
    OK(pathways_run(h->add, NULL, (pathways_array[]){x, x}, 2, &y, 1, NULL));
    if (i % 2) {
      pathways_program p;
      OK(pathways_program_end(&y, 1, &p));
      OK(pathways_drop(p));
    } else {
      OK(pathways_program_abandon());
    }
    OK(pathways_drop(x)), OK(pathways_drop(y));
  }
  OK(pathways_program_begin(h->session));
  OK(pathways_run(h->add, NULL, (pathways_array[]){input(), input()}, 2, &y, 1, NULL));
  return NULL;
}

static void threads(pathways_session s) {
  shared h = {.session = s, .add = compile(s, ADD, 0, NULL, 0)};
  pathways_array y;
  OK(pathways_program_begin(s));
  pathways_array x = input();
  OK(pathways_run(h.add, NULL, (pathways_array[]){x, x}, 2, &y, 1, NULL));
  OK(pathways_program_end(&y, 1, &h.program));
  pthread_t thread[4];
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&thread[i], NULL, i == 3 ? captures : plays, &h) == 0);
  for (int i = 0; i < 4; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static void ends(const char* address) {
  pathways_session s = open_session(address, 2);
  pathways_executable add = compile(s, ADD, 0, NULL, 0);
  float up[] = {0, 1, 2, 3}, y[4];
  pathways_array in = vector(s, up, 4), x, sum, out;
  pathways_program p, q;
  int32_t at[2];
  pathways_slice l = slice_of(s, at);
  OK(pathways_program_begin(s));
  x = input();
  OK(pathways_run(add, NULL, (pathways_array[]){x, in}, 2, &sum, 1, NULL));
  OK(pathways_program_end(&sum, 1, &p));
  OK(pathways_program_play(p, &in, 1, &out, 1));
  pathways_future read;
  OK(pathways_array_read(out, 0, y, sizeof y, &read));
  OK(pathways_program_begin(s));
  x = input();
  OK(pathways_run(add, NULL, (pathways_array[]){x, in}, 2, &sum, 1, NULL));
  OK(pathways_drop(s));  // in the middle of a capture and a play
  FAILS(pathways_program_end(&sum, 1, &q), PATHWAYS_INVALID_ARGUMENT, "ended with its session");
  FAILS(pathways_program_play(p, &in, 1, &out, 1), PATHWAYS_INVALID_ARGUMENT, "ended with its session");
  FAILS(pathways_slice_renew(l), PATHWAYS_INVALID_ARGUMENT, "ended with its session");
  FAILS(pathways_program_begin(s), PATHWAYS_INVALID_ARGUMENT, "dropped");
  OK(pathways_program_abandon());
  pathways_error err = pathways_future_wait(read, 200000000000);
  CHECK(err || y[3] == 6);
  if (err) OK(pathways_drop(err));
  OK(pathways_drop(read));
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(pathways_has_feature("slices") && pathways_has_feature("programs"));
  pathways_session s = open_session(argv[1], 6);
  figure_2(s, 3);
  results(s);
  wrong_slices(s);
  wrong_captures(s, argv[1]);
  if (*argv[1] == 0) failures();
  threads(s);
  OK(pathways_drop(s));
  ends(argv[1]);
  return finish();
}
