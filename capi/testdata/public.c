// Tests of capi/public's handles and errors: handle.c and error.c. No handle, whatever its bits, ends the process.
#include "unit.h"

#include "public.h"

// ---- objects that count their ends ----

typedef struct {
  pc_object base;
  int* ended;
} thing;

static void end(pc_object* object) {
  ++*((thing*)object)->ended;
  free(object);
}

void pc_array_destroy(pc_object* object) { end(object); }
void pc_executable_destroy(pc_object* object) { end(object); }
void pc_future_destroy(pc_object* object) { end(object); }
void pc_view_destroy(pc_object* object) { end(object); }
void pc_slice_destroy(pc_object* object) { end(object); }
void pc_program_destroy(pc_object* object) { end(object); }

static int sessions_ended;
void pc_session_destroy(pc_object* object) {
  sessions_ended++;
  pthread_mutex_destroy(&((pc_session*)object)->mu);
  free(object);
}

// The library's thread, whose calls wait here for the test.
static void (*later)(void* arg);
static void* later_arg;
void pc_later(void (*call)(void* arg), void* arg) {
  later = call;
  later_arg = arg;
}

static thing* new_thing(int* ended) {
  thing* t = calloc(1, sizeof *t);
  t->ended = ended;
  return t;
}

static uint64_t new_handle(pc_kind kind, pc_session* session, int* ended) {
  uint64_t handle = 0;
  CHECK(pc_new(&new_thing(ended)->base, kind, session, &handle) == 0 && handle != 0);
  return handle;
}

static pc_session* new_session(uint64_t* handle) {
  pc_session* s = calloc(1, sizeof *s);
  pthread_mutex_init(&s->mu, NULL);
  CHECK(pc_new(&s->base, PC_SESSION, NULL, handle) == 0);
  return s;
}

// REFUSES expects an error with a code, whose text has a word in it, and drops it.
#define REFUSES(call, code, word)                                                        \
  do {                                                                                   \
    pathways_error err_ = (call);                                                        \
    const char* text_ = pathways_error_message(err_);                                    \
    CHECK(pathways_error_code(err_) == (code) && has_word(text_, strlen(text_), (word))); \
    CHECK(pathways_drop(err_) == 0);                                                     \
  } while (0)

// ---- tests ----

static void a_dropped_handle_names_nothing(void) {
  int ended = 0;
  uint64_t handle = new_handle(PC_ARRAY, NULL, &ended);
  thing* got;
  CHECK(pc_get(handle, PC_ARRAY, &got) == 0);
  CHECK(pathways_drop(handle) == 0 && ended == 0);  // a call is using it
  REFUSES(pathways_drop(handle), PATHWAYS_INVALID_ARGUMENT, "of an array was dropped");
  pc_let(got);
  CHECK(ended == 1);
  uint64_t next = new_handle(PC_ARRAY, NULL, &ended);
  CHECK((next >> 32) == (handle >> 32) && next != handle);  // the same slot
  REFUSES(pc_get(handle, PC_ARRAY, &got), PATHWAYS_INVALID_ARGUMENT, "was dropped");
  pc_discard(handle);  // which may be stale
  pc_discard(next);
  CHECK(ended == 2);
}

static void no_bits_of_a_handle_end_the_process(void) {
  int ended = 0;
  uint64_t handle = new_handle(PC_FUTURE, NULL, &ended);
  void* got;
  REFUSES(pc_get(0, PC_FUTURE, &got), PATHWAYS_INVALID_ARGUMENT, "a handle is 0: expected that of a future");
  REFUSES(pc_get(7, PC_FUTURE, &got), PATHWAYS_INVALID_ARGUMENT, "0x7 is no handle");
  REFUSES(pc_get(handle, PC_ARRAY, &got), PATHWAYS_INVALID_ARGUMENT, "is that of a future: expected that of an array");
  for (int bit = 0; bit < 64; bit++) {
    uint64_t wrong = handle ^ 1ull << bit;
    REFUSES(pc_get(wrong, PC_FUTURE, &got), PATHWAYS_INVALID_ARGUMENT, "handle");
    REFUSES(pathways_drop(wrong), PATHWAYS_INVALID_ARGUMENT, "handle");
  }
  CHECK(ended == 0 && pathways_drop(handle) == 0 && ended == 1);
}

static void a_session_that_ends_drops_what_it_lists(void) {
  int arrays = 0, futures = 0;
  uint64_t session, kept, array, future, late = 0;
  pc_session* s = new_session(&session);
  array = new_handle(PC_ARRAY, s, &arrays);
  kept = new_handle(PC_ARRAY, s, &arrays);
  future = new_handle(PC_FUTURE, s, &futures);  // is not listed: its handle outlives the session's
  CHECK(pathways_drop(array) == 0 && arrays == 1);
  CHECK(pathways_drop(session) == 0 && arrays == 2);
  REFUSES(pathways_drop(kept), PATHWAYS_INVALID_ARGUMENT, "ended with its session");
  REFUSES(pc_new(&new_thing(&arrays)->base, PC_ARRAY, s, &late), PATHWAYS_CANCELLED, "the session was dropped");
  CHECK(arrays == 3 && late == 0);
  CHECK(futures == 0 && sessions_ended == 0);  // the future needs it
  CHECK(pathways_drop(future) == 0 && futures == 1 && sessions_ended == 1);
}

static void the_last_reference_of_a_plugins_thread_goes_to_the_librarys(void) {
  int ended = 0;
  uint64_t handle = new_handle(PC_ARRAY, NULL, &ended);
  thing* got;
  CHECK(pc_get(handle, PC_ARRAY, &got) == 0);
  pc_let_later(&got->base);
  CHECK(later == NULL && ended == 0);  // it is not the last one
  CHECK(pc_get(handle, PC_ARRAY, &got) == 0 && pathways_drop(handle) == 0);
  pc_let_later(&got->base);
  CHECK(later != NULL && ended == 0);
  later(later_arg);
  CHECK(ended == 1);
}

static void errors_keep_code_and_text_until_they_are_dropped(void) {
  pathways_error err = pc_fail(PATHWAYS_NOT_FOUND, "no %s", "such array");
  CHECK(pathways_error_code(err) == PATHWAYS_NOT_FOUND && strcmp(pathways_error_message(err), "no such array") == 0);
  CHECK(pathways_drop(err) == 0 && pathways_error_code(err) == PATHWAYS_INVALID_ARGUMENT);
  CHECK(strstr(pathways_error_message(err), "no handle of an error") != NULL);
  CHECK(pathways_error_code(0) == PATHWAYS_OK && *pathways_error_message(0) == 0 && pc_take(NULL) == 0);
  REFUSES(pc_take(pw_error(PJRT_Error_Code_DATA_LOSS, "it is lost")), PATHWAYS_DATA_LOSS, "it is lost");
  CHECK(pw_errors_alive == 0);
}

// If there is no memory for an error, its handle is one that says so, and that may be dropped like any other.
static void an_error_without_memory_is_an_error(void) {
  for (int n = 0; n < 2; n++) {
    pw_alloc_fails_after(n);
    pathways_error err = pc_fail(PATHWAYS_NOT_FOUND, "no such array");
    pw_alloc_fails_after(-1);
    CHECK(err == PC_NO_MEMORY);
    REFUSES(err, PATHWAYS_RESOURCE_EXHAUSTED, "not even for the text of an error");
  }
}

static bool makes(int* ended, uint64_t* handle) {
  int before = *ended;
  pathways_error err = pc_new(&new_thing(ended)->base, PC_ARRAY, NULL, handle);
  if (err == 0) return true;
  CHECK(*ended == before + 1);  // what has no handle ends
  REFUSES(err, PATHWAYS_RESOURCE_EXHAUSTED, "no memory left");
  return false;
}

static void a_handle_without_memory_ends_its_object(void) {
  enum { kMany = 1024 };  // and a few: their slots are allocated together
  static uint64_t handles[kMany];
  int ended = 0, n = 0;
  for (bool whole = true; whole; n++) {
    CHECK(n < kMany);
    pw_alloc_fails_after(0);
    whole = makes(&ended, &handles[n]);
    pw_alloc_fails_after(-1);
  }
  n--;  // the last one was refused
  CHECK(ended == 1 && makes(&ended, &handles[n]));
  for (int i = 0; i <= n; i++) CHECK(pathways_drop(handles[i]) == 0);
  CHECK(ended == n + 2);
}

static void structs_are_read_and_written_as_far_as_both_reach(void) {
  typedef struct {
    size_t struct_size;
    int one, two;
  } options;
  options full = {sizeof full, 1, 2}, read;
  REFUSES(pc_no_struct("options", false), PATHWAYS_INVALID_ARGUMENT, "options is NULL");
  REFUSES(pc_no_struct("options", true), PATHWAYS_INVALID_ARGUMENT, "struct_size of options");
  full.struct_size = offsetof(options, two);
  read = (options){sizeof read, 7, 8};
  PC_WRITE(&full, read);
  CHECK(full.one == 7 && full.two == 2 && full.struct_size == offsetof(options, two));
}

int main(void) {
  a_handle_without_memory_ends_its_object();
  a_dropped_handle_names_nothing();
  no_bits_of_a_handle_end_the_process();
  a_session_that_ends_drops_what_it_lists();
  the_last_reference_of_a_plugins_thread_goes_to_the_librarys();
  errors_keep_code_and_text_until_they_are_dropped();
  an_error_without_memory_is_an_error();
  structs_are_read_and_written_as_far_as_both_reach();
  return 0;
}
