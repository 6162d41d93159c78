// Tests of capi/export: who owns an array on its way from one client to another.
#include "unit.h"

#include <pthread.h>

#include "export.h"

char* pwGoPlan(size_t num_dims, int64_t* dims, size_t num_from, int64_t* from, size_t num_to, int64_t* to,
               char* memory, uint64_t* plan) {
  (void)num_dims, (void)dims, (void)num_from, (void)from, (void)num_to, (void)to, (void)memory, (void)plan;
  abort();  // no test makes a plan
}
void pwGoPlanFree(uint64_t plan) { (void)plan, abort(); }

size_t pathways_exported(uint64_t* arrays, size_t space);
void pathways_import(const uint64_t* arrays, size_t n);
void pathways_release(const uint64_t* arrays, size_t n);
char* pathways_reshard(uint64_t array, uint64_t plan, uint64_t* out);

// ---- a frontend whose arrays are counted ----

static _Atomic int alive;
static int client, other;

static void free_array(pw_export* exported) {
  alive--;
  free(exported);
}

static char* reshard(pw_export* exported, uint64_t plan, pw_export** out);
static const pw_export_methods methods = {free_array, reshard};

static pw_export* array(void* of) {
  pw_export* e = calloc(1, sizeof *e);
  e->base.client = of;
  e->base.refs = 1;
  e->methods = &methods;
  alive++;
  return e;
}

static char* reshard(pw_export* exported, uint64_t plan, pw_export** out) {
  if (plan == 0) return pw_copy_text("INVALID_ARGUMENT: the plan is for another array");
  *out = array(exported->base.client);
  return NULL;
}

// ---- tests ----

static void only_two_names_are_not_run(void) {
  CHECK(pw_port_of(PW_EXPORT) == PW_EXPORTS && pw_port_of(PW_IMPORT) == PW_IMPORTS);
  CHECK(pw_port_of("jit_step") == PW_RUNS && pw_port_of(PW_EXPORT "_1") == PW_RUNS && pw_port_of("") == PW_RUNS);
}

static void exported_arrays_are_taken_all_or_none(void) {
  pw_export* arrays[] = {array(&client), array(&client), array(&client)};
  uint64_t numbers[3];
  WALK(pw_exported(arrays, 3), );
  CHECK(alive == 3 && pw_export_count() == 3);
  CHECK(pathways_exported(numbers, 3) == 3 && pathways_exported(numbers, 3) == 0);
  for (int i = 0; i < 3; i++) {
    pw_export* found = pw_export_find(numbers[i]);
    CHECK(found == arrays[i] && found->base.refs == 2);
    pw_export_drop(found);
  }
  pathways_release(numbers, 3);
  pathways_release(numbers, 3);  // names nothing any more
  CHECK(alive == 0 && pw_export_count() == 0);
}

static void arrays_that_are_not_asked_for_are_dropped(void) {
  uint64_t numbers[2];
  pw_export* pair[] = {array(&client), array(&client)};
  CHECK(pw_exported(pair, 2) && pathways_exported(numbers, 1) == 2);  // more than there is space for
  CHECK(alive == 0);
  enum { kMany = 40 };  // more than are kept
  for (int i = 0; i < kMany; i++) {
    pw_export* one = array(&client);
    CHECK(pw_exported(&one, 1));
  }
  int kept = alive;
  CHECK(kept > 0 && kept < kMany);
  for (int i = 0; i < kept; i++) {  // the newest first
    CHECK(pathways_exported(numbers, 1) == 1);
    pathways_release(numbers, 1);
  }
  CHECK(alive == 0 && pathways_exported(numbers, 1) == 0);
}

static void an_import_gets_just_what_was_named_for_it(void) {
  pw_export* got[3];
  uint64_t numbers[3];
  CHECK(!pw_imported(got, 1));
  for (int i = 0; i < 3; i++) numbers[i] = pw_export_put(array(&client));
  pathways_import(numbers, 3);
  CHECK(pw_imported(got, 3) && alive == 3 && pw_export_count() == 0);
  for (int i = 0; i < 3; i++) numbers[i] = pw_export_put(got[i]);
  pathways_import(numbers, 3);
  CHECK(!pw_imported(got, 2) && alive == 0);  // another number: they go
  numbers[0] = pw_export_put(array(&client));
  numbers[1] = numbers[2];  // was released
  pathways_import(numbers, 2);
  CHECK(!pw_imported(got, 2) && alive == 0);
  numbers[0] = pw_export_put(array(&client));
  pw_alloc_fails_after(0);
  pathways_import(numbers, 1);  // names nothing for want of memory, and the caller still has its array
  pw_alloc_fails_after(-1);
  CHECK(!pw_imported(got, 1) && alive == 1);
  pathways_release(numbers, 1);
  CHECK(alive == 0);
}

static void* export_and_end(void* arg) {
  uint64_t number = pw_export_put(array(&client));
  pw_export* one = array(&client);
  CHECK(pw_exported(&one, 1));
  pathways_import(&number, 1);
  return arg;
}

static void the_end_of_a_thread_drops_what_it_left(void) {
  pthread_t thread;
  CHECK(pthread_create(&thread, NULL, export_and_end, NULL) == 0);
  pthread_join(thread, NULL);
  CHECK(alive == 0 && pw_export_count() == 0);
}

static void the_end_of_a_client_drops_its_arrays_alone(void) {
  uint64_t others = pw_export_put(array(&other));
  for (int i = 0; i < 30; i++) pw_export_put(array(&client));
  pw_export_end(&client);
  CHECK(alive == 1 && pw_export_count() == 1);
  pathways_release(&others, 1);
  CHECK(alive == 0);
}

static bool resharded(uint64_t from, uint64_t* to) {
  char* refusal = pathways_reshard(from, 1, to);
  CHECK(refusal == NULL || strncmp(refusal, "RESOURCE_EXHAUSTED: ", 20) == 0);
  pw_refusal_free(refusal);
  return refusal == NULL;
}

static void a_reshard_makes_a_new_array_or_says_why_not(void) {
  uint64_t from = pw_export_put(array(&client)), to = 0;
  char* refusal = pathways_reshard(from, 0, &to);
  CHECK(strcmp(refusal, "INVALID_ARGUMENT: the plan is for another array") == 0);
  pw_refusal_free(refusal);
  for (int i = 0; i < 127; i++) pw_export_put(array(&other));  // so that the next number needs memory
  WALK(resharded(from, &to), );
  CHECK(to != 0 && to != from && alive == 129);
  pw_export_end(&client);
  pw_export_end(&other);
  CHECK(alive == 0);
  refusal = pathways_reshard(from, 1, &to);
  CHECK(strncmp(refusal, "NOT_FOUND: ", 11) == 0);
  pw_refusal_free(refusal);
}

int main(void) {
  only_two_names_are_not_run();
  exported_arrays_are_taken_all_or_none();
  arrays_that_are_not_asked_for_are_dropped();
  an_import_gets_just_what_was_named_for_it();
  the_end_of_a_thread_drops_what_it_left();
  the_end_of_a_client_drops_its_arrays_alone();
  a_reshard_makes_a_new_array_or_says_why_not();
  return 0;
}
