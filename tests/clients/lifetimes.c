// Handles in every wrong state, wrong arguments, every order of release, callbacks
// that call back, threads that drop what others use, and rounds without growth:
// lifetimes ADDRESS ROUNDS.
#include <malloc.h>
#include <semaphore.h>
#include <sys/wait.h>

#include "check.h"

static float ones[4] = {1, 1, 1, 1};

// ---- handles ----

static void every_call_with(uint64_t h, const char* word) {
  pathways_session_info_t si = {.struct_size = sizeof si};
  pathways_device_info_t di = {.struct_size = sizeof di};
  pathways_executable_info_t ei = {.struct_size = sizeof ei};
  pathways_array_info_t ai = {.struct_size = sizeof ai};
  pathways_compile_options co = {.struct_size = sizeof co, .code = ADD, .code_size = sizeof ADD - 1};
  int64_t n = 4;
  pathways_host_options ho = {.struct_size = sizeof ho, .data = ones, .type = PATHWAYS_F32, .num_dims = 1, .dims = &n};
  uint64_t out = 0;
  const void* data;
  int32_t zero = 0;
  pathways_error errors[] = {pathways_drop(h),
                             pathways_session_info(h, &si),
                             pathways_device_info(h, 0, &di),
                             pathways_compile(h, &co, &out),
                             pathways_executable_info(h, &ei),
                             pathways_array_from_host(h, &ho, &out),
                             pathways_array_info(h, &ai),
                             pathways_array_devices(h, &zero, 1),
                             pathways_array_ready(h, &out),
                             pathways_array_read(h, 0, ones, sizeof ones, &out),
                             pathways_array_copy(h, &zero, 1, &out),
                             pathways_array_view(h, 0, &out, &data),
                             pathways_run(h, NULL, NULL, 0, NULL, 0, NULL),
                             pathways_future_wait(h, 0)};
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) FAILS(errors[i], PATHWAYS_INVALID_ARGUMENT, word);
  CHECK(out == 0);
  CHECK(pathways_error_code(h) == (h ? PATHWAYS_INVALID_ARGUMENT : PATHWAYS_OK) && pathways_error_message(h) != NULL);
}

static void wrong_handles(pathways_session s) {
  every_call_with(0, "is 0");
  every_call_with(1, "no handle");
  every_call_with(UINT64_MAX, "no handle");
  pathways_array a = vector(s, ones, 4);
  OK(pathways_drop(a));
  every_call_with(a, "was dropped");
  uint64_t random = 88172645463325252u;
  for (int i = 0; i < 20000; i++) {  // handles that were never handed out
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    pathways_error e = pathways_future_wait(i % 2 ? random : (a & ~0xffffffffull) | (uint32_t)random, 0);
    FAILS(e, PATHWAYS_INVALID_ARGUMENT, "handle");
  }
  a = vector(s, ones, 4);
  pathways_executable e = compile(s, ADD, 0, NULL, 0);
  pathways_array out;
  pathways_executable_info_t ei = {.struct_size = sizeof ei};
  FAILS(pathways_executable_info(a, &ei), PATHWAYS_INVALID_ARGUMENT, "an array: expected that of an executable");
  FAILS(pathways_run(e, NULL, (pathways_array[]){a, e}, 2, &out, 1, NULL), PATHWAYS_INVALID_ARGUMENT,
        "expected that of an array");
  OK(pathways_drop(a));
  OK(pathways_drop(e));
}

// ---- arguments ----

static void wrong_arguments(pathways_session s, const char* address) {
  pathways_executable e = compile(s, ADD, 0, NULL, 0), other;
  pathways_array a = vector(s, ones, 4), b = vector(s, ones, 3), out = 7;
  pathways_future f;
  const void* data;
  pathways_view v;
  char room[16];
  int32_t no_device = 4711, twice[] = {0, 0};
  FAILS(pathways_run(e, NULL, &a, 1, &out, 1, NULL), PATHWAYS_INVALID_ARGUMENT, "takes 2");
  FAILS(pathways_run(e, NULL, (pathways_array[]){a, b}, 2, &out, 1, NULL), PATHWAYS_INVALID_ARGUMENT, "f32[3]");
  FAILS(pathways_run(e, NULL, (pathways_array[]){a, a}, 2, &out, 0, NULL), PATHWAYS_INVALID_ARGUMENT, "1 results");
  FAILS(pathways_run(e, NULL, NULL, 2, &out, 1, NULL), PATHWAYS_INVALID_ARGUMENT, "NULL");
  pathways_run_options ro = {.struct_size = sizeof ro, .keep = &no_device, .num_keep = 1};
  FAILS(pathways_run(e, &ro, (pathways_array[]){a, a}, 2, &out, 1, NULL), PATHWAYS_INVALID_ARGUMENT, "4711");
  ro.struct_size = 0;
  FAILS(pathways_run(e, &ro, (pathways_array[]){a, a}, 2, &out, 1, NULL), PATHWAYS_INVALID_ARGUMENT, "struct_size");
  CHECK(out == 7);
  FAILS(pathways_array_read(a, 0, room, 15, &f), PATHWAYS_INVALID_ARGUMENT, "takes 16 bytes");
  FAILS(pathways_array_read(a, 1, room, 16, &f), PATHWAYS_INVALID_ARGUMENT, "no shard 1");
  FAILS(pathways_array_read(a, -2, room, 16, &f), PATHWAYS_INVALID_ARGUMENT, "no shard -2");
  FAILS(pathways_array_read(a, 0, NULL, 16, &f), PATHWAYS_INVALID_ARGUMENT, "NULL");
  FAILS(pathways_array_view(a, 0, NULL, &data), PATHWAYS_INVALID_ARGUMENT, "NULL");
  FAILS(pathways_array_view(a, -1, &v, &data), PATHWAYS_INVALID_ARGUMENT, "no shard -1");
  FAILS(pathways_array_copy(a, &no_device, 1, &out), PATHWAYS_INVALID_ARGUMENT, "4711");
  FAILS(pathways_array_copy(a, twice, 2, &out), PATHWAYS_INVALID_ARGUMENT, "1 shards");
  pathways_device_info_t di = {.struct_size = sizeof di};
  FAILS(pathways_device_info(s, -1, &di), PATHWAYS_INVALID_ARGUMENT, "no device -1");

  int64_t dims[] = {4, 6}, tiles[] = {3, 1}, huge[] = {INT64_MAX / 2, 6}, negative[] = {4, -1};
  pathways_host_options good = {.struct_size = sizeof good,
                                .data = ones,
                                .type = PATHWAYS_U8,
                                .num_dims = 2,
                                .dims = dims},
                        o;
  o = good, o.type = (pathways_type)99;
  FAILS(pathways_array_from_host(s, &o, &out), PATHWAYS_INVALID_ARGUMENT, "type 99");
  o = good, o.num_dims = 33;
  FAILS(pathways_array_from_host(s, &o, &out), PATHWAYS_INVALID_ARGUMENT, "33 dimensions");
  o = good, o.dims = huge;
  FAILS(pathways_array_from_host(s, &o, &out), PATHWAYS_INVALID_ARGUMENT, "more bytes");
  o = good, o.dims = negative;
  FAILS(pathways_array_from_host(s, &o, &out), PATHWAYS_INVALID_ARGUMENT, "negative");
  o = good, o.data = NULL;
  FAILS(pathways_array_from_host(s, &o, &out), PATHWAYS_INVALID_ARGUMENT, "NULL");
  o = good, o.tiles = (pathways_tiles){2, tiles};
  FAILS(pathways_array_from_host(s, &o, &out), PATHWAYS_INVALID_ARGUMENT, "3 equal parts");
  o = good, o.tiles = (pathways_tiles){1, tiles};
  FAILS(pathways_array_from_host(s, &o, &out), PATHWAYS_INVALID_ARGUMENT, "its tiles 1");
  o = good, o.devices = twice, o.num_devices = 2;
  FAILS(pathways_array_from_host(s, &o, &out), PATHWAYS_INVALID_ARGUMENT, "twice");
  o = good, o.mode = (pathways_host_mode)3;
  FAILS(pathways_array_from_host(s, &o, &out), PATHWAYS_INVALID_ARGUMENT, "mode 3");

  pathways_compile_options co = {.struct_size = sizeof co, .code = "not a program", .code_size = 13};
  FAILS(pathways_compile(s, &co, &other), PATHWAYS_INVALID_ARGUMENT, "");
  co.code = ADD, co.code_size = sizeof ADD - 1, co.num_partitions = 5000;
  FAILS(pathways_compile(s, &co, &other), PATHWAYS_INVALID_ARGUMENT, "5000 partitions");
  co.num_partitions = 0, co.devices = &no_device, co.num_devices = 1;
  FAILS(pathways_compile(s, &co, &other), PATHWAYS_INVALID_ARGUMENT, "4711");
  pathways_tiles three[3] = {{0, NULL}};
  co.devices = NULL, co.num_devices = 0, co.outputs = three, co.num_outputs = 3;
  FAILS(pathways_compile(s, &co, &other), PATHWAYS_INVALID_ARGUMENT, "3 outputs");

  pathways_session_options so = {.struct_size = sizeof so, .address = "nowhere:1"};
  pathways_session t;
  FAILS(pathways_session_open(&so, &t), PATHWAYS_INVALID_ARGUMENT, "nowhere");
  so.address = "", so.devices = 2, so.elastic = 1;
  FAILS(pathways_session_open(&so, &t), PATHWAYS_INVALID_ARGUMENT, "elastic is for clusters");
  so.elastic = 2;
  FAILS(pathways_session_open(&so, &t), PATHWAYS_INVALID_ARGUMENT, "elastic is 2");
  so.elastic = 0, so.platform = "cpu";
  FAILS(pathways_session_open(&so, &t), PATHWAYS_INVALID_ARGUMENT, "platform is \"cpu\", and is for clusters");
  so.address = "local:1x1", so.devices = 1, so.platform = "cpu,tpu";
  FAILS(pathways_session_open(&so, &t), PATHWAYS_INVALID_ARGUMENT, "platform is \"cpu,tpu\": expected one");
  so.platform = "tpu";
  FAILS(pathways_session_open(&so, &t), PATHWAYS_RESOURCE_EXHAUSTED, "no devices of platform tpu");
  so.platform = NULL, so.elastic = 1; // the cluster is asked for an elastic session
  FAILS(pathways_session_open(&so, &t), PATHWAYS_INVALID_ARGUMENT, "no worker can join");
  // Another session's arrays are not this one's, whichever kind either is.
  t = open_session(*address ? "" : "local:1x1", 1);
  pathways_array foreign = vector(t, ones, 4);
  FAILS(pathways_run(e, NULL, (pathways_array[]){a, foreign}, 2, &out, 1, NULL), PATHWAYS_INVALID_ARGUMENT,
        "another session");
  OK(pathways_drop(t));
  OK(pathways_drop(a));
  OK(pathways_drop(b));
  OK(pathways_drop(e));
}

// ---- a struct of a later version, and of an earlier one ----

static void other_versions(pathways_session s) {
  struct {
    pathways_session_info_t info;
    char later[64];
  } large;
  memset(&large, 1, sizeof large);
  large.info.struct_size = sizeof large;
  OK(pathways_session_info(s, &large.info));
  CHECK(large.later[0] == 1 && large.info.num_devices > 0);
  struct {
    size_t struct_size;
    int32_t num_devices, after;
  } small = {.struct_size = 12, .after = 4711};
  OK(pathways_session_info(s, (pathways_session_info_t*)&small));
  CHECK(small.num_devices == large.info.num_devices && small.after == 4711);
}

// ---- every order of release ----

static void orders(const char* address) {
  for (int order = 0; order < 24; order++) {
    pathways_session s = open_session(address, 2);
    pathways_executable e = compile(s, ADD, 0, NULL, 0);
    pathways_array a = vector(s, ones, 4), out;
    pathways_future f;
    OK(pathways_run(e, NULL, (pathways_array[]){a, a}, 2, &out, 1, &f));
    uint64_t handles[] = {s, e, out, f}, left[] = {0, 1, 2, 3};
    int gone = 0;
    for (int n = 4, k = order; n; k /= n, n--) {
      int i = k % n, which = (int)left[i];
      pathways_error err = pathways_drop(handles[which]);
      // What the session made went with it, but the future.
      if (gone && which != 3) FAILS(err, PATHWAYS_INVALID_ARGUMENT, "session");
      else OK(err);
      gone |= which == 0;
      memmove(left + i, left + i + 1, (size_t)(n - i - 1) * sizeof *left);
    }
    every_call_with(s, "dropped");
    FAILS(pathways_drop(a), PATHWAYS_INVALID_ARGUMENT, "session");
  }
  pathways_session s = open_session(address, 1);
  pathways_executable e = compile(s, ADD, 0, NULL, 0);
  pathways_array a = vector(s, ones, 4), out;
  pathways_future f;
  pathways_view v;
  const void* data;
  OK(pathways_run(e, NULL, (pathways_array[]){a, a}, 2, &out, 1, &f));
  WAIT(f);
  OK(pathways_array_view(out, 0, &v, &data));
  OK(pathways_drop(s));
  WAIT(f);  // it has come already, and stays
  OK(pathways_drop(f));
  CHECK(((const float*)data)[3] == 2);  // the view keeps the memory
  OK(pathways_drop(v));
}

// ---- callbacks ----

typedef struct {
  pathways_session session;
  pathways_executable add;
  int left;
  sem_t done;
} chain;

static void link_of(pathways_error error, void* arg) {
  chain* c = arg;
  OK(error);
  if (c->left-- == 0) {
    sem_post(&c->done);
    return;
  }
  // A callback runs, waits, reads, drops, and asks for the next callback.
  pathways_array a = vector(c->session, ones, 4), out;
  pathways_future f;
  float y[4];
  OK(pathways_run(c->add, NULL, (pathways_array[]){a, a}, 2, &out, 1, &f));
  OK(pathways_drop(a));
  read_into(out, 0, y, sizeof y);
  CHECK(y[0] == 2);
  OK(pathways_drop(out));
  OK(pathways_future_then(f, link_of, c));
  OK(pathways_drop(f));
}

static void post(void* arg) { sem_post(arg); }

static void post_with(pathways_error error, void* arg) {
  if (error) OK(pathways_drop(error));
  sem_post(arg);
}

static void drop_session(pathways_error error, void* arg) {
  chain* c = arg;
  if (error) OK(pathways_drop(error));
  OK(pathways_drop(c->session));
  sem_post(&c->done);
}

static void callbacks(const char* address) {
  pathways_session s = open_session(address, 2);
  chain c = {.session = s, .add = compile(s, ADD, 0, NULL, 0), .left = 50};
  sem_init(&c.done, 0, 0);
  link_of(0, &c);
  sem_wait(&c.done);

  // Lent memory comes back once, after the array; freed memory is not touched.
  sem_t released;
  sem_init(&released, 0, 0);
  float* lent = aligned_alloc(64, 4096);
  int64_t n = 1024;
  for (int i = 0; i < 1024; i++) lent[i] = (float)i;
  pathways_host_options o = {.struct_size = sizeof o,
                             .data = lent,
                             .type = PATHWAYS_F32,
                             .mode = PATHWAYS_BORROW,
                             .num_dims = 1,
                             .dims = &n,
                             .released = post,
                             .released_arg = &released};
  pathways_array a;
  float back[1024];
  OK(pathways_array_from_host(s, &o, &a));
  read_into(a, 0, back, sizeof back);
  CHECK(back[1023] == 1023);
  if (*address == 0) CHECK(sem_trywait(&released));  // the array still lies there
  OK(pathways_drop(a));
  sem_wait(&released);
  o.released = free, o.released_arg = lent;  // taken over
  OK(pathways_array_from_host(s, &o, &a));
  pathways_view v = 0;
  const void* data;
  if (*address == 0) {
    OK(pathways_array_view(a, 0, &v, &data));
    CHECK(data == lent);  // not copied
  }
  OK(pathways_drop(a));
  if (v) {
    CHECK(((const float*)data)[7] == 7);
    OK(pathways_drop(v));
  }
  static char bytes[128] __attribute__((aligned(64)));
  o = (pathways_host_options){.struct_size = sizeof o,
                              .data = bytes + 1,
                              .type = PATHWAYS_U8,
                              .mode = PATHWAYS_BORROW_OR_FAIL,
                              .num_dims = 1,
                              .dims = (int64_t[]){64},
                              .released = post,
                              .released_arg = &released};
  FAILS(pathways_array_from_host(s, &o, &a), PATHWAYS_FAILED_PRECONDITION,
        *address ? "not this process's" : "multiple of 64");
  CHECK(sem_trywait(&released));  // a call that fails takes nothing over

  // A future that is ready already, one that was dropped, and one whose session ends in the callback.
  pathways_future f;
  a = vector(s, ones, 4);
  OK(pathways_array_ready(a, &f));
  WAIT(f);
  OK(pathways_future_then(f, post_with, &released));
  sem_wait(&released);
  OK(pathways_future_then(f, drop_session, &c));
  OK(pathways_drop(f));
  sem_wait(&c.done);
  FAILS(pathways_drop(a), PATHWAYS_INVALID_ARGUMENT, "session");
  sem_destroy(&c.done);
  sem_destroy(&released);
}

// ---- threads ----

typedef struct {
  pathways_session session;
  pathways_executable add;
  _Atomic uint64_t shared[8];  // handles that any thread replaces, drops and uses
  _Atomic int stop;
} arena;

static int may_fail(pathways_error e, int session_ends) {
  if (e == 0) return 0;
  pathways_code code = pathways_error_code(e);
  if (code != PATHWAYS_INVALID_ARGUMENT &&
      !(session_ends &&
        (code == PATHWAYS_CANCELLED || code == PATHWAYS_UNAVAILABLE || code == PATHWAYS_FAILED_PRECONDITION)))
    check_ok(e, __FILE__, __LINE__, "a call beside others");
  OK(pathways_drop(e));
  return 1;
}

static void* fight(void* arg) {
  arena* r = arg;
  unsigned seed = (unsigned)(uintptr_t)&seed;
  int64_t n = 4;
  for (int i = 0; !atomic_load(&r->stop); i++) {
    pathways_host_options o = {.struct_size = sizeof o, .data = ones, .type = PATHWAYS_F32, .num_dims = 1, .dims = &n};
    pathways_array a = 0, out = 0;
    if (may_fail(pathways_array_from_host(r->session, &o, &a), 1)) continue;
    uint64_t old = atomic_exchange(&r->shared[rand_r(&seed) % 8], a);
    uint64_t any[] = {atomic_load(&r->shared[rand_r(&seed) % 8]), atomic_load(&r->shared[rand_r(&seed) % 8])};
    if (!may_fail(pathways_run(r->add, NULL, any, 2, &out, 1, NULL), 1)) {
      float y[4];
      pathways_future f;
      if (!may_fail(pathways_array_read(out, 0, y, sizeof y, &f), 1)) {
        may_fail(pathways_future_wait(f, -1), 1);
        OK(pathways_drop(f));
      }
      may_fail(pathways_drop(out), 1);
    }
    if (old) may_fail(pathways_drop(old), 1);
  }
  return NULL;
}

static void threads(const char* address, int ends) {
  pathways_session s = open_session(address, 2);
  arena r = {.session = s, .add = compile(s, ADD, 0, NULL, 0)};
  pthread_t t[4];
  for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, fight, &r) == 0);
  for (int64_t runs = 0; runs < 400;) {
    pathways_session_info_t info = {.struct_size = sizeof info};
    OK(pathways_session_info(s, &info));
    runs = info.runs;
    usleep(1000);
  }
  if (ends) OK(pathways_drop(s));  // in the middle of it all
  atomic_store(&r.stop, 1);
  for (int i = 0; i < 4; i++) CHECK(pthread_join(t[i], NULL) == 0);
  if (!ends) OK(pathways_drop(s));
}

// ---- the child of a fork ----

static void forks(const char* address) {
  pathways_session s = open_session(address, 1);
  pathways_array a = vector(s, ones, 4), out;
  pathways_executable e = compile(s, ADD, 0, NULL, 0);
  pid_t child = fork();
  if (child == 0) {
    pathways_session t;
    FAILS(pathways_run(e, NULL, (pathways_array[]){a, a}, 2, &out, 1, NULL), PATHWAYS_FAILED_PRECONDITION, "fork");
    FAILS(pathways_session_open(NULL, &t), PATHWAYS_FAILED_PRECONDITION, "fork");
    FAILS(pathways_drop(a), PATHWAYS_FAILED_PRECONDITION, "fork");
    _exit(0);
  }
  int status;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  OK(pathways_run(e, NULL, (pathways_array[]){a, a}, 2, &out, 1, NULL));
  OK(pathways_drop(s));
}

// ---- rounds ----

static void rounds(const char* address, int n) {
  pathways_session s = open_session(address, 1);
  pathways_executable add = compile(s, ADD, 0, NULL, 0);
  size_t before = 0;
  for (int i = 0; i < n; i++) {
    pathways_array a = vector(s, ones, 4), out;
    OK(pathways_run(add, NULL, (pathways_array[]){a, a}, 2, &out, 1, NULL));
    FAILS(pathways_drop(0), PATHWAYS_INVALID_ARGUMENT, "is 0");
    if (i % 16 == 0) {
      float y[4];
      read_into(out, 0, y, sizeof y);
    }
    OK(pathways_drop(a));
    OK(pathways_drop(out));
    // After a tenth everything is as large as it gets.
    if (i == n / 10 || i == n - 1) {
      size_t used = 0;
      FILE* f = fopen("/proc/self/statm", "r");
      CHECK(f && fscanf(f, "%*u %zu", &used) == 1);
      fclose(f);
      if (i == n - 1) CHECK(used * 4096 < before * 4096 + (64 << 20));
      before = used;
    }
  }
  pathways_session_info_t info = {.struct_size = sizeof info};
  OK(pathways_session_info(s, &info));
  CHECK(info.arrays == 0 && info.runs == n);
  OK(pathways_drop(s));
}

int main(int argc, char** argv) {
  CHECK(argc == 3);
  pathways_session s = open_session(argv[1], 2);
  wrong_handles(s);
  wrong_arguments(s, argv[1]);
  other_versions(s);
  OK(pathways_drop(s));
  orders(argv[1]);
  callbacks(argv[1]);
  threads(argv[1], 0);
  threads(argv[1], 1);
  forks(argv[1]);
  rounds(argv[1], atoi(argv[2]));
  return finish();
}
