// The C API of programs, see pathways.h: programs by number.
#include <pthread.h>
#include <stdlib.h>

#include "graph.h"

#define SHOWN __attribute__((visibility("default")))

typedef struct {
  pp_program* program;  // NULL: free
  uint32_t times;       // how often the place was given
  uint32_t next;        // free list: 1 + a place
} place;

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards the table
static place* places;
static uint32_t num_places, room, free_place;
static _Atomic int64_t count;

int64_t pp_count(void) { return atomic_load_explicit(&count, memory_order_relaxed); }

static uint64_t put(pp_program* p) {
  pthread_mutex_lock(&mu);
  uint32_t i = free_place;
  if (i) {
    free_place = places[i - 1].next;
  } else {
    if (num_places == room) {
      room = room ? 2 * room : 16;
      places = realloc(places, room * sizeof *places);
    }
    i = ++num_places;
    places[i - 1].times = 0;
  }
  place* at = &places[i - 1];
  at->program = p;
  uint64_t number = (uint64_t)++at->times << 32 | i;
  pthread_mutex_unlock(&mu);
  atomic_fetch_add_explicit(&count, 1, memory_order_relaxed);
  return number;
}

// find gives a program: with a reference of its own, or, to take it out of the
// table, with the table's.
static pp_program* find(uint64_t number, bool take) {
  uint32_t i = (uint32_t)number;
  pp_program* p = NULL;
  pthread_mutex_lock(&mu);
  if (i > 0 && i <= num_places && places[i - 1].times == number >> 32) {
    place* at = &places[i - 1];
    p = at->program;
    if (p && take) {
      at->program = NULL;
      at->next = free_place;
      free_place = i;
    } else if (p) {
      atomic_fetch_add_explicit(&p->refs, 1, memory_order_relaxed);
    }
  }
  pthread_mutex_unlock(&mu);
  if (p && take) atomic_fetch_sub_explicit(&count, 1, memory_order_relaxed);
  return p;
}

void pp_client_ended(const PJRT_Client* client) {
  for (uint32_t i = 0;; i++) {
    uint64_t number = 0;
    pthread_mutex_lock(&mu);
    while (i < num_places && (places[i].program == NULL || places[i].program->client != client)) i++;
    bool more = i < num_places;
    if (more) number = (uint64_t)places[i].times << 32 | (i + 1);
    pthread_mutex_unlock(&mu);
    if (!more) return;
    pp_program_drop(find(number, true));
  }
}

SHOWN char* pathways_capture_begin(void) { return pw_forked ? pw_forked_refusal() : pp_begin(); }

SHOWN char* pathways_capture_inputs(size_t n, const uint8_t* donated) {
  return pw_forked ? pw_forked_refusal() : pp_announce(n, donated);
}

SHOWN char* pathways_capture_end(const uint64_t* arrays, size_t n, int32_t* results, uint64_t* program) {
  if (pw_forked) return pw_forked_refusal();
  pp_program* p = NULL;
  char* refusal = pp_end(arrays, n, results, &p);
  if (refusal == NULL) *program = put(p);
  return refusal;
}

SHOWN void pathways_capture_drop(void) {
  if (!pw_forked) pp_leave();
}

SHOWN char* pathways_program_run(uint64_t program, const uint64_t* arrays, size_t n, uint64_t* results, size_t m) {
  if (pw_forked) return pw_forked_refusal();
  pp_program* p = find(program, false);
  pw_held *some[64], **held = n + m <= 64 ? some : malloc((n + m) * sizeof *held);
  size_t found = 0;
  for (size_t i = 0; i < n; i++)
    if ((held[found] = pw_held_take(arrays[i]))) found++;
  char* refusal = NULL;
  if (p == NULL)
    refusal = strdup("NOT_FOUND: the program was freed, or its client has ended");
  else if (found != n)
    refusal = strdup("NOT_FOUND: an array that the program is to run with is held no more");
  else if (n != p->num_inputs || m != p->num_outputs)
    refusal = strdup("INVALID_ARGUMENT: the program has another number of inputs or results");
  else if (pp_capturing)
    refusal = strdup("FAILED_PRECONDITION: this thread captures a program, and no other is run in it");
  if (refusal)
    for (size_t i = 0; i < found; i++) pw_held_drop(held[i]);
  else
    refusal = pp_refusal(pp_play(p, held, held + n));
  for (size_t i = 0; i < m && refusal == NULL; i++) results[i] = pw_held_put(held[n + i]);
  if (held != some) free(held);
  pp_program_drop(p);
  return refusal;
}

SHOWN char* pathways_program_describe(uint64_t program) {
  if (pw_forked) return strdup("{}");
  pp_program* p = find(program, false);
  char* text = p ? pp_text(p) : strdup("{}");
  pp_program_drop(p);
  return text;
}

SHOWN void pathways_program_free(uint64_t program) {
  if (!pw_forked) pp_program_drop(find(program, true));
}
