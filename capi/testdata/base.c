// Tests of capi/base: what needs neither a frontend nor Go.
#include "unit.h"

#include "numbers.h"
#include "object.h"

static void copies_end_with_a_zero_byte(void) {
  char* copy = pw_copy("abc", 2);
  CHECK(strcmp(copy, "ab") == 0);
  free(copy);
  copy = pw_copy(NULL, 0);
  CHECK(copy && *copy == 0);
  free(copy);
  WALK((copy = pw_text("%d of %s", 7, "nine")) != NULL, CHECK(strcmp(copy, "7 of nine") == 0));
  free(copy);
}

static void a_list_that_cannot_grow_stays(void) {
  int* list = NULL;
  size_t room = 0, n = 0;
  for (; n < 100; n++) {
    size_t before = room;
    const int* was = list;
    if (n == room) {
      pw_alloc_fails_after(0);
      CHECK(!pw_grow(&list, n, &room, sizeof *list));
      CHECK(list == was && room == before);
      pw_alloc_fails_after(-1);
    }
    CHECK(pw_grow(&list, n, &room, sizeof *list) && room > n);
    list[n] = (int)n;
  }
  for (size_t i = 0; i < n; i++) CHECK(list[i] == (int)i);
  free(list);
}

static void errors_keep_code_and_text(void) {
  FAILS(pw_error(PJRT_Error_Code_NOT_FOUND, "no %s", "such thing"), PJRT_Error_Code_NOT_FOUND, "no such thing");
  FAILS(pw_error_context(pw_error(PJRT_Error_Code_ABORTED, "it failed"), " [here]"), PJRT_Error_Code_ABORTED,
        "it failed [here]");
  CHECK(pw_errors_alive == 0);
}

// An error that cannot be made is one that is always there, so a call that fails never looks like success.
static void an_error_without_memory_is_an_error(void) {
  for (int n = 0; n < 2; n++) {
    pw_alloc_fails_after(n);
    PJRT_Error* err = pw_error(PJRT_Error_Code_NOT_FOUND, "no such thing");
    pw_alloc_fails_after(-1);
    CHECK(err && pw_error_ours(err));
    FAILS(err, PJRT_Error_Code_RESOURCE_EXHAUSTED, "not even for the text of an error");
  }
  FAILS(pw_error_take(PJRT_Error_Code_NOT_FOUND, NULL), PJRT_Error_Code_RESOURCE_EXHAUSTED, "no memory left");
  pw_alloc_fails_after(0);
  FAILS(pw_error_context(pw_error_take(PJRT_Error_Code_ABORTED, NULL), " [here]"), PJRT_Error_Code_RESOURCE_EXHAUSTED,
        "no memory left");
  pw_alloc_fails_after(-1);
  CHECK(pw_errors_alive == 0);
  pw_refusal_free(pw_refusal(NULL));
}

static void shapes_have_xlas_texts_and_sizes(void) {
  static const struct {
    PJRT_Buffer_Type type;
    size_t n;
    int64_t dims[3];
    const char* text;
    int64_t bytes;
  } cases[] = {
      {PJRT_Buffer_Type_F32, 2, {4, 8}, "f32[4,8]", 128},
      {PJRT_Buffer_Type_BF16, 0, {0}, "bf16[]", 2},
      {PJRT_Buffer_Type_PRED, 1, {0}, "pred[0]", 0},
      {PJRT_Buffer_Type_S4, 1, {3}, "s4[3]", 2},
      {PJRT_Buffer_Type_TOKEN, 0, {0}, "token[]", 0},
      {(PJRT_Buffer_Type)99, 1, {2}, "?[2]", 16},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[64];
    pw_shape* s = pw_shape_new(cases[i].type, cases[i].dims, cases[i].n);
    pw_shape_text(s, text, sizeof text);
    CHECK(strcmp(text, cases[i].text) == 0);
    CHECK(pw_shape_bytes(s) == cases[i].bytes);
    for (size_t size = 1; size < sizeof text; size++) {  // never writes past what it is given
      char* narrow = malloc(size);
      pw_shape_text(s, narrow, size);
      CHECK(strlen(narrow) < size && strncmp(narrow, cases[i].text, strlen(narrow)) == 0);
      free(narrow);
    }
    pw_shape_drop(pw_shape_hold(s, 1));
    pw_shape_drop(s);
  }
}

static PW_READS(unit, PJRT_Buffer_IsDeleted, args->is_deleted = true)

static void structs_of_older_callers_are_read_as_far_as_they_reach(void) {
  size_t size = offsetof(PJRT_Buffer_IsDeleted_Args, is_deleted);
  PJRT_Buffer_IsDeleted_Args* args = malloc(size);  // a read beyond is found by the sanitizer
  memset(args, 0xff, size);
  args->struct_size = size;
  CHECK(PW_COVERS(args, buffer) && !PW_COVERS(args, is_deleted));
  PW_COPY(PJRT_Buffer_IsDeleted_Args, copy, args);
  CHECK(copy.struct_size == PJRT_Buffer_IsDeleted_Args_STRUCT_SIZE && copy.buffer == args->buffer && !copy.is_deleted);
  free(args);
  CHECK(unit_PJRT_Buffer_IsDeleted(&copy) == NULL && copy.is_deleted);
}

// ---- slots ----

typedef struct {
  pw_slot slot;
  uint64_t contents[3];
} cell;

static pw_slab slab = PW_SLAB(cell);

static void a_stale_handle_names_no_slot(void) {
  cell* c[3];
  CHECK(pw_slab_take(&slab, c, 3) && pw_slab_taken(&slab) == 3);
  CHECK(c[0] != c[1] && c[1] != c[2] && c[0] != c[2] && c[0]->contents[2] == 0);
  PJRT_Buffer* handle = pw_slot_handle(&c[0]->slot);
  CHECK(pw_slot_of(handle) == &c[0]->slot);
  CHECK(pw_slot_end(&c[0]->slot) && pw_slot_of(handle) == NULL);
  CHECK(pw_slot_of(NULL) == NULL && pw_slot_of((PJRT_Buffer*)&c[0]->slot) == NULL);  // not a handle of ours
  atomic_store(&c[1]->slot.generation, UINT16_MAX);
  CHECK(pw_slot_end(&c[1]->slot) && c[1]->slot.generation == 1);  // 0 would be a plain pointer
  for (int i = 0; i < 3; i++) pw_slab_put(&slab, &c[i]->slot);
  CHECK(pw_slab_taken(&slab) == 0);
}

static void a_slab_without_memory_takes_no_slot(void) {
  static pw_slab empty = PW_SLAB(cell);
  cell* c[1000];
  for (int n = 0; n < 2; n++) {  // the memory of the slots; or, once more, of the slots beyond the first 512
    pw_alloc_fails_after(n);
    CHECK(!pw_slab_take(&empty, c, 1000));
    pw_alloc_fails_after(-1);
    CHECK(pw_slab_taken(&empty) == 0);
  }
  CHECK(pw_slab_take(&empty, c, 1000) && pw_slab_taken(&empty) == 1000);
  for (int i = 0; i < 1000; i++) pw_slab_put(&empty, &c[i]->slot);
  CHECK(pw_slab_taken(&empty) == 0);
}

// Each thread marks the slots that it has: no other thread may have them at the same time.
static void* take_and_put(void* arg) {
  enum { kHeld = 100, kTimes = 2000 };
  uint64_t mine = (uint64_t)(uintptr_t)arg;
  cell* held[kHeld] = {0};
  for (int i = 0; i < kTimes; i++) {
    cell** c = &held[(size_t)i * 7 % kHeld];
    if (*c) {
      CHECK((*c)->contents[0] == mine);
      (*c)->contents[0] = 0;
      pw_slab_put(&slab, &(*c)->slot);
      *c = NULL;
    } else {
      CHECK(pw_slab_take(&slab, c, 1) && (*c)->contents[0] == 0);
      (*c)->contents[0] = mine;
    }
  }
  for (int i = 0; i < kHeld; i++)
    if (held[i]) {
      held[i]->contents[0] = 0;
      pw_slab_put(&slab, &held[i]->slot);
    }
  return NULL;
}

static void a_slot_has_one_owner_whatever_threads_do(void) {
  pthread_t threads[4];
  for (uintptr_t i = 0; i < 4; i++) CHECK(pthread_create(&threads[i], NULL, take_and_put, (void*)(i + 1)) == 0);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
  CHECK(pw_slab_taken(&slab) == 0);  // what threads kept for themselves has gone back
}

// ---- numbers ----

static void a_number_names_its_object_and_no_later_one(void) {
  static pw_numbers table = PW_NUMBERS;
  int one, two;  // clients
  pw_numbered a = {&one, 1}, b = {&two, 1};
  uint64_t first;
  WALK((first = pw_numbers_put(&table, &a)) != 0, );
  CHECK(pw_numbers_find(&table, first, false) == &a && a.refs == 2);
  CHECK(pw_numbers_find(&table, first, true) == &a && a.refs == 2 && pw_numbers_count(&table) == 0);
  uint64_t second = pw_numbers_put(&table, &b);
  CHECK((uint32_t)second == (uint32_t)first && second != first);  // the same place, used once more
  CHECK(pw_numbers_find(&table, first, true) == NULL && pw_numbers_find(&table, 0, true) == NULL);
  CHECK(pw_numbers_find(&table, second + 1, true) == NULL && pw_numbers_find(&table, ~0ull, true) == NULL);
  for (int i = 0; i < 20; i++) CHECK(pw_numbers_put(&table, &a) != 0);
  uint32_t at = 0;
  int taken = 0;
  while (pw_numbers_next(&table, &one, &at)) taken++;
  CHECK(taken == 20 && pw_numbers_count(&table) == 1 && pw_numbers_find(&table, second, true) == &b);
  free(table.places);
}

// ---- objects that have gone ----

static void an_object_that_has_gone_cannot_be_held(void) {
  pw_object o = {0};
  pw_object_is(&o, (pw_name){1, 2}, 2, 8);
  CHECK(pw_object_hold(&o) && o.live == 3);
  CHECK(!pw_object_drop(&o) && !pw_object_drop_alone(&o) && pw_object_drop_alone(&o));
  CHECK(!pw_object_hold(&o));
}

static void what_has_gone_is_told_in_batches_and_once(void) {
  enum { kObjects = PW_FREED + 10 };
  static pw_departed gone = PW_DEPARTED;
  static pw_object objects[kObjects];
  pw_name names[PW_FREED];
  pw_object *first, *last;
  bool told[kObjects] = {false};
  for (int i = 0; i < kObjects; i++) {
    if (i < PW_FREED / 2) CHECK(pw_departed_take(&gone, names, PW_FREED, false, &first, &last) == 0);
    pw_object_is(&objects[i], (pw_name){1, (uint64_t)i}, 1, 8);
    pw_departed_add(&gone, &objects[i]);
  }
  CHECK(gone.bytes == 8 * kObjects);
  size_t n, sum = 0;
  while ((n = pw_departed_take(&gone, names, PW_FREED, true, &first, &last)) > 0) {
    sum += n;
    for (size_t i = 0; i < n; i++) {
      CHECK(!told[names[i].number]);
      told[names[i].number] = true;
    }
  }
  CHECK(sum == kObjects && gone.num == 0 && gone.bytes == 0);
}

// ---- memories ----

static int destroyed;
static void destroy(void* data) { destroyed += *(int*)data; }

static void data_of_a_memory_is_destroyed_when_it_is_replaced(void) {
  static int ones = 1, tens = 10, hundreds = 100;
  pw_memory_base m = {0};
  pw_memory_init(&m);
  const PJRT_Memory_FunctionTable* table = (void*)m.base.vtable;
  void (*set)(PJRT_Memory*, const void*, void*, void (*)(void*)) = (void*)table->set_user_data;
  void* (*get)(PJRT_Memory*, const void*) = (void*)table->get_user_data;
  CHECK(get(&m.base, &ones) == NULL);
  set(&m.base, &ones, &ones, destroy);
  set(&m.base, &tens, &tens, destroy);
  CHECK(get(&m.base, &ones) == &ones && get(&m.base, &tens) == &tens && destroyed == 0);
  set(&m.base, &ones, &hundreds, destroy);
  CHECK(get(&m.base, &ones) == &hundreds && destroyed == 1);
  pw_alloc_fails_after(0);
  set(&m.base, &hundreds, &tens, destroy);  // is dropped, since nothing is returned
  pw_alloc_fails_after(-1);
  CHECK(get(&m.base, &hundreds) == NULL && destroyed == 11);
  pw_memory_close(&m);
  CHECK(destroyed == 121);
}

static void statistics_reach_as_far_as_the_callers_struct(void) {
  pw_account a = {.limit = 100, .share = 50};
  pw_account_add(&a, 30);
  pw_account_add(&a, 40);
  pw_account_sub(&a, 30);
  PW_ARGS(PJRT_Device_MemoryStats_Args, s);
  pw_memory_stats(&s, &a);
  CHECK(s.bytes_in_use == 40 && s.peak_bytes_in_use == 70 && s.num_allocs == 2 && s.largest_alloc_size == 40);
  CHECK(s.bytes_limit == 100 && s.bytes_reservable_limit == 50 && s.largest_free_block_bytes == 10);
  size_t size = offsetof(PJRT_Device_MemoryStats_Args, peak_bytes_in_use);
  PJRT_Device_MemoryStats_Args* small = malloc(size);  // a write beyond is found by the sanitizer
  memset(small, 0xff, size);
  small->struct_size = size;
  pw_memory_stats(small, &a);
  CHECK(small->bytes_in_use == 40);
  free(small);
}

// ---- the user's line ----

static int says_line_nine(char* text, int size) { return snprintf(text, (size_t)size, "file.py:9"); }

static void the_calls_options_know_the_line_before_the_client_does(void) {
  char text[PW_LOCATION] = "as it was";
  PW_ARGS(PJRT_ExecuteOptions, options);
  CHECK(pw_location(&options, text, sizeof text) == 0 && strcmp(text, "as it was") == 0);
  pw_set_locate(says_line_nine);
  CHECK(pw_location(&options, text, sizeof text) == 9 && strcmp(text, "file.py:9") == 0);
  options.call_location = "train.py:7";
  pw_location(&options, text, sizeof text);
  CHECK(strcmp(text, "train.py:7") == 0);
  options.struct_size = offsetof(PJRT_ExecuteOptions, call_location);  // of a caller that does not know the field
  pw_location(&options, text, sizeof text);
  CHECK(strcmp(text, "file.py:9") == 0);
  pw_set_locate(NULL);
}

int main(void) {
  copies_end_with_a_zero_byte();
  a_list_that_cannot_grow_stays();
  errors_keep_code_and_text();
  an_error_without_memory_is_an_error();
  shapes_have_xlas_texts_and_sizes();
  structs_of_older_callers_are_read_as_far_as_they_reach();
  a_stale_handle_names_no_slot();
  a_slab_without_memory_takes_no_slot();
  a_slot_has_one_owner_whatever_threads_do();
  a_number_names_its_object_and_no_later_one();
  an_object_that_has_gone_cannot_be_held();
  what_has_gone_is_told_in_batches_and_once();
  data_of_a_memory_is_destroyed_when_it_is_replaced();
  statistics_reach_as_far_as_the_callers_struct();
  the_calls_options_know_the_line_before_the_client_does();
  return 0;
}
