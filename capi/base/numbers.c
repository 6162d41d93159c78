// A place is used 2^32 times before it repeats a number.
#include "numbers.h"

#include "base.h"

#include <stdlib.h>

typedef struct pw_place {
  pw_numbered* thing;  // NULL: free
  uint32_t times;      // how often the place was used
  uint32_t next;       // free list: 1 + a place
} place;

uint64_t pw_numbers_put(pw_numbers* t, pw_numbered* thing) {
  pthread_mutex_lock(&t->mu);
  uint32_t i = t->free_place;
  if (i) {
    t->free_place = t->places[i - 1].next;
  } else {
    if (!pw_grow(&t->places, t->num_places, &t->room, sizeof *t->places)) {
      pthread_mutex_unlock(&t->mu);
      return 0;
    }
    i = ++t->num_places;
    t->places[i - 1].times = 0;
  }
  place* p = &t->places[i - 1];
  p->thing = thing;
  uint64_t number = (uint64_t)++p->times << 32 | i;
  t->count++;
  pthread_mutex_unlock(&t->mu);
  return number;
}

// take_at empties a place. The caller holds the lock.
static pw_numbered* take_at(pw_numbers* t, uint32_t i) {
  place* p = &t->places[i - 1];
  pw_numbered* thing = p->thing;
  p->thing = NULL;
  p->next = t->free_place;
  t->free_place = i;
  t->count--;
  return thing;
}

void* pw_numbers_find(pw_numbers* t, uint64_t number, bool take) {
  uint32_t i = (uint32_t)number;
  pw_numbered* thing = NULL;
  pthread_mutex_lock(&t->mu);
  if (i > 0 && i <= t->num_places && t->places[i - 1].times == number >> 32) thing = t->places[i - 1].thing;
  if (thing && take)
    take_at(t, i);
  else if (thing)
    atomic_fetch_add_explicit(&thing->refs, 1, memory_order_relaxed);
  pthread_mutex_unlock(&t->mu);
  return thing;
}

void* pw_numbers_next(pw_numbers* t, const void* client, uint32_t* at) {
  pw_numbered* thing = NULL;
  pthread_mutex_lock(&t->mu);
  for (; *at < t->num_places && thing == NULL; ++*at) {
    const place* p = &t->places[*at];
    if (p->thing && p->thing->client == client) thing = take_at(t, *at + 1);
  }
  pthread_mutex_unlock(&t->mu);
  return thing;
}

int64_t pw_numbers_count(pw_numbers* t) {
  pthread_mutex_lock(&t->mu);
  int64_t count = t->count;
  pthread_mutex_unlock(&t->mu);
  return count;
}
