// A session with more devices than its cluster has: elastic ADDRESS. It says "ready" when it has found that the second
// one is not there yet, and goes on once it is. It says "captured" when it has a program with a constant there, and
// goes on once that was lost and another worker has its place.
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

// put_later puts an array on the second device as soon as it is there; until then that fails with a code.
static pathways_array put_later(pathways_session s, pathways_code code, const char* word) {
  pathways_array a;
  pathways_error e;
  for (int tries = 0; (e = what(s, &a)); tries++) {
    CHECK(tries < 20000);
    FAILS(e, code, word);
    usleep(10000);
  }
  return a;
}

// doubled checks an array that is the sum of data and data, and drops it.
static void doubled(pathways_array sum) {
  float got[4];
  read_into(sum, 0, got, sizeof got);
  for (int i = 0; i < 4; i++) CHECK(got[i] == 2 * data[i]);
  OK(pathways_drop(sum));
}

// adds_constant captures a program that adds an array to its argument.
static pathways_program adds_constant(pathways_session s, pathways_executable add, pathways_array constant) {
  const int64_t n = 4;
  pathways_host_options like = {.struct_size = sizeof like,
                                .type = PATHWAYS_F32,
                                .num_dims = 1,
                                .dims = &n,
                                .devices = &second,
                                .num_devices = 1};
  pathways_array x, y;
  pathways_program p;
  OK(pathways_program_begin(s));
  OK(pathways_program_input(&like, &x));
  OK(pathways_run(add, NULL, (pathways_array[]){x, constant}, 2, &y, 1, NULL));
  OK(pathways_program_end(&y, 1, &p));
  OK(pathways_drop(x));
  OK(pathways_drop(y));
  return p;
}

// A program whose constant was lost says so, and can be captured again once another worker is there.
static void loses_a_constant(pathways_session s, pathways_executable add, pathways_array a) {
  static const char again[] = "capture the program again";
  pathways_program p = adds_constant(s, add, a);
  pathways_array y;
  OK(pathways_program_play(p, &a, 1, &y, 1));
  doubled(y);
  puts("captured");
  fflush(stdout);

  pathways_error e;
  for (int tries = 0; (e = pathways_program_play(p, &a, 1, &y, 1)) == 0; tries++) {
    CHECK(tries < 20000);
    OK(pathways_drop(y));
    usleep(10000);
  }
  FAILS(e, PATHWAYS_DATA_LOSS, again);
  pathways_array b = put_later(s, PATHWAYS_UNAVAILABLE, "worker late");
  FAILS(pathways_program_play(p, &b, 1, &y, 1), PATHWAYS_DATA_LOSS, again);
  OK(pathways_drop(p));
  p = adds_constant(s, add, b);
  OK(pathways_program_play(p, &b, 1, &y, 1));
  doubled(y);
  OK(pathways_drop(p));
  OK(pathways_drop(b));
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

  a = put_later(s, PATHWAYS_NOT_FOUND, "the cluster had 1");
  OK(pathways_compile(s, &c, &add));
  pathways_array sum;
  OK(pathways_run(add, NULL, (pathways_array[]){a, a}, 2, &sum, 1, NULL));
  doubled(sum);
  loses_a_constant(s, add, a);
  OK(pathways_drop(a));
  OK(pathways_drop(add));
  OK(pathways_drop(s));
  return finish();
}
