// A session with more devices than its cluster has: elastic ADDRESS. It says "ready" when it has found that the second
// one is not there yet, and goes on once it is.
#include "check.h"

static const float data[4] = {1, 2, 3, 4};
static const int32_t second = 1;

static pathways_error put(pathways_session s, pathways_array* a) {
  const int64_t n = 4;
  pathways_host_options o = {.struct_size = sizeof o,
                             .data = data,
                             .type = PATHWAYS_F32,
                             .num_dims = 1,
                             .dims = &n,
                             .devices = &second,
                             .num_devices = 1};
  return pathways_array_from_host(s, &o, a);
}

// what puts an array on the second device and returns why that fails, 0 if it does not.
static pathways_error what(pathways_session s, pathways_array* a) {
  pathways_error e = put(s, a);
  if (e) return e;
  pathways_future ready;
  OK(pathways_array_ready(*a, &ready));
  e = pathways_future_wait(ready, 200000000000);
  OK(pathways_drop(ready));
  if (e) OK(pathways_drop(*a));
  return e;
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  pathways_session_options o = {.struct_size = sizeof o, .address = argv[1], .devices = 2, .elastic = 1};
  pathways_session s;
  OK(pathways_session_open(&o, &s));
  pathways_session_info_t info = {.struct_size = sizeof info};
  OK(pathways_session_info(s, &info));
  CHECK(info.num_devices == 2);

  pathways_array a;
  FAILS(what(s, &a), PATHWAYS_NOT_FOUND, "the cluster had 1");
  pathways_compile_options c = {.struct_size = sizeof c,
                                .code = ADD,
                                .code_size = sizeof ADD - 1,
                                .devices = &second,
                                .num_devices = 1};
  pathways_executable add;
  FAILS(pathways_compile(s, &c, &add), PATHWAYS_NOT_FOUND, "the cluster had 1");
  puts("ready");
  fflush(stdout);

  pathways_error e;
  for (int tries = 0; (e = what(s, &a)); tries++) {
    CHECK(tries < 20000);
    FAILS(e, PATHWAYS_NOT_FOUND, "the cluster had 1");
    usleep(10000);
  }
  OK(pathways_compile(s, &c, &add));
  pathways_array sum;
  OK(pathways_run(add, NULL, (pathways_array[]){a, a}, 2, &sum, 1, NULL));
  float got[4];
  read_into(sum, 0, got, sizeof got);
  for (int i = 0; i < 4; i++) CHECK(got[i] == 2 * data[i]);
  OK(pathways_drop(sum));
  OK(pathways_drop(a));
  OK(pathways_drop(add));
  OK(pathways_drop(s));
  return finish();
}
