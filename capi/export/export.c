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

// ---- numbers of exported arrays ----

static pw_numbers table = PW_NUMBERS;

int64_t pw_export_count(void) { return pw_numbers_count(&table); }
uint64_t pw_export_put(pw_export* exported) { return pw_numbers_put(&table, &exported->base); }
pw_export* pw_export_find(uint64_t number) { return pw_numbers_find(&table, number, false); }
pw_export* pw_export_take(uint64_t number) { return pw_numbers_find(&table, number, true); }

void pw_export_drop(pw_export* exported) {
  if (exported && atomic_fetch_sub_explicit(&exported->base.refs, 1, memory_order_acq_rel) == 1)
    exported->methods->free(exported);
}

void pw_export_end(const void* client) {
  pw_export* exported;
  for (uint32_t i = 0; (exported = pw_numbers_next(&table, client, &i));) pw_export_drop(exported);
}

// ---- what a thread has exported, and what it is about to import. Both are stacks: a Python finaliser that moves
// arrays may run between two calls of its own thread. Batches that are never asked for are dropped when the stack is
// full. ----

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
  for (size_t i = 0; i < n; i++) pw_export_drop(pw_export_take(numbers[i]));
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

static ports* own_ports(void) {
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

bool pw_exported(pw_export* const* exported, size_t n) {
  ports* p = own_ports();
  uint64_t* numbers = p ? pw_zeros(n, sizeof *numbers) : NULL;
  if (numbers == NULL) return false;
  for (size_t i = 0; i < n; i++)
    if ((numbers[i] = pw_export_put(exported[i])) == 0) {
      while (i-- > 0) pw_export_take(numbers[i]);  // the reference is the caller's again
      free(numbers);
      return false;
    }
  push(&p->out, numbers, n);
  return true;
}

bool pw_imported(pw_export** exported, size_t n) {
  stack* s = mine ? &mine->in : NULL;
  if (s == NULL || s->depth == 0) return false;
  batch b = s->batches[--s->depth];
  size_t found = 0;
  while (b.n == n && found < n && (exported[found] = pw_export_take(b.numbers[found]))) found++;
  bool all = b.n == n && found == n;
  if (!all) {
    for (size_t i = 0; i < found; i++) pw_export_drop(exported[i]);
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
  ports* p = own_ports();
  uint64_t* numbers = p ? pw_copy(arrays, n * sizeof *numbers) : NULL;
  // Nothing is returned here. If memory is short, the import that follows says that its thread has named no arrays; the
  // caller still has them to release.
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
  pw_export *exported = pw_export_find(array), *made = NULL;
  if (exported == NULL) return pw_refusal(pw_copy_text("NOT_FOUND: the array to reshard was released or imported"));
  char* refusal = exported->methods->reshard(exported, plan, &made);
  pw_export_drop(exported);
  if (refusal == NULL && (*out = pw_export_put(made)) == 0) {
    pw_export_drop(made);
    refusal =
        pw_refusal(pw_copy_text("RESOURCE_EXHAUSTED: this process has no memory left for the number of an array"));
  }
  return refusal;
}
