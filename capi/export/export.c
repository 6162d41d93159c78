#include "export.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"
#include "base.h"

#define SHOWN __attribute__((visibility("default")))

pw_port pw_port_of(const char* program) {
  if (strcmp(program, PW_EXPORT) == 0) return PW_EXPORTS;
  return strcmp(program, PW_IMPORT) == 0 ? PW_IMPORTS : PW_RUNS;
}

// ---- numbers of what is held ----

static pw_numbers table = PW_NUMBERS;

int64_t pw_held_count(void) { return pw_numbers_count(&table); }
uint64_t pw_held_put(pw_held* held) { return pw_numbers_put(&table, &held->base); }
pw_held* pw_held_find(uint64_t number) { return pw_numbers_find(&table, number, false); }
pw_held* pw_held_take(uint64_t number) { return pw_numbers_find(&table, number, true); }

void pw_held_drop(pw_held* held) {
  if (held && atomic_fetch_sub_explicit(&held->base.refs, 1, memory_order_acq_rel) == 1) held->door->free(held);
}

void pw_held_end(const void* client) {
  pw_held* held;
  for (uint32_t i = 0; (held = pw_numbers_next(&table, client, &i));) pw_held_drop(held);
}

// ---- what a thread exported and is about to import. Both are stacks: a finaliser
// that moves arrays may run, in Python, between two calls of its own thread. What
// nobody asked for goes in time.

enum { kDepth = 16 };

typedef struct {
  uint64_t* numbers;
  size_t n;
} batch;

typedef struct {
  batch batches[kDepth];
  size_t depth;
} stack;

typedef struct {
  stack out, in;
} ports;

static pthread_key_t ending;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static __thread ports* mine;

static void release(const uint64_t* numbers, size_t n) {
  for (size_t i = 0; i < n; i++) pw_held_drop(pw_held_take(numbers[i]));
}

static void clear(stack* s) {
  for (size_t i = 0; i < s->depth; i++) {
    release(s->batches[i].numbers, s->batches[i].n);
    free(s->batches[i].numbers);
  }
  s->depth = 0;
}

static void end_thread(void* p) {
  if (!pw_forked) {
    clear(&((ports*)p)->out);
    clear(&((ports*)p)->in);
  }
  free(p);
  mine = NULL;
}

static void make_key(void) { pthread_key_create(&ending, end_thread); }

static ports* self(void) {
  if (mine == NULL) {
    pthread_once(&once, make_key);
    mine = pw_zeros(1, sizeof *mine);
    if (mine) pthread_setspecific(ending, mine);
  }
  return mine;
}

static void push(stack* s, uint64_t* numbers, size_t n) {
  if (s->depth == kDepth) {
    batch oldest = s->batches[0];
    memmove(s->batches, s->batches + 1, (kDepth - 1) * sizeof oldest);
    s->depth--;
    release(oldest.numbers, oldest.n);
    free(oldest.numbers);
  }
  s->batches[s->depth++] = (batch){numbers, n};
}

bool pw_exported(pw_held* const* held, size_t n) {
  ports* p = self();
  uint64_t* numbers = p ? pw_zeros(n, sizeof *numbers) : NULL;
  if (numbers == NULL) return false;
  for (size_t i = 0; i < n; i++)
    if ((numbers[i] = pw_held_put(held[i])) == 0) {
      while (i-- > 0) pw_held_take(numbers[i]);  // the reference is the caller's again
      free(numbers);
      return false;
    }
  push(&p->out, numbers, n);
  return true;
}

bool pw_imported(pw_held** held, size_t n) {
  stack* s = mine ? &mine->in : NULL;
  if (s == NULL || s->depth == 0) return false;
  batch b = s->batches[--s->depth];
  size_t found = 0;
  while (b.n == n && found < n && (held[found] = pw_held_take(b.numbers[found]))) found++;
  bool all = b.n == n && found == n;
  if (!all) {
    for (size_t i = 0; i < found; i++) pw_held_drop(held[i]);
    release(b.numbers, b.n);
  }
  free(b.numbers);
  return all;
}

// ---- the C API, see pathways.h ----

SHOWN size_t pathways_exported(uint64_t* arrays, size_t space) {
  if (pw_forked) return 0;
  stack* s = mine ? &mine->out : NULL;
  if (s == NULL || s->depth == 0) return 0;
  batch b = s->batches[--s->depth];
  if (b.n <= space)
    memcpy(arrays, b.numbers, b.n * sizeof *arrays);
  else
    release(b.numbers, b.n);
  free(b.numbers);
  return b.n;
}

SHOWN void pathways_import(const uint64_t* arrays, size_t n) {
  if (pw_forked) return;
  ports* p = self();
  uint64_t* numbers = p ? pw_copy(arrays, n * sizeof *numbers) : NULL;
  // Nothing is returned here: the import that follows says that its thread has named no arrays, which are the caller's
  // to release.
  if (numbers) push(&p->in, numbers, n);
}

SHOWN void pathways_release(const uint64_t* arrays, size_t n) {
  if (!pw_forked) release(arrays, n);
}

SHOWN char* pathways_plan(size_t num_dims, const int64_t* dims, size_t num_from, const int64_t* from, size_t num_to,
                          const int64_t* to, const char* memory, uint64_t* plan) {
  if (pw_forked) return pw_forked_refusal();
  return pwGoPlan(num_dims, (int64_t*)dims, num_from, (int64_t*)from, num_to, (int64_t*)to, (char*)memory, plan);
}

SHOWN void pathways_plan_free(uint64_t plan) {
  if (!pw_forked) pwGoPlanFree(plan);
}

SHOWN char* pathways_reshard(uint64_t array, uint64_t plan, uint64_t* out) {
  if (pw_forked) return pw_forked_refusal();
  pw_held *held = pw_held_find(array), *made = NULL;
  if (held == NULL) return pw_refusal(pw_copy_text("NOT_FOUND: the array that is to move is held no more"));
  char* refusal = held->door->reshard(held, plan, &made);
  pw_held_drop(held);
  if (refusal == NULL && (*out = pw_held_put(made)) == 0) {
    pw_held_drop(made);
    refusal =
        pw_refusal(pw_copy_text("RESOURCE_EXHAUSTED: this process has no memory left for the number of an array"));
  }
  return refusal;
}
