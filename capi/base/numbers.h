// The numbers by which the C API names what it keeps. A number is a place in a
// table and how often that place was given, so that one of something that went names
// nothing.
//
// Every function may be called from any thread.
#ifndef PATHWAYS_CAPI_BASE_NUMBERS_H_
#define PATHWAYS_CAPI_BASE_NUMBERS_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// pw_numbered begins the struct of what has a number.
typedef struct {
  void* client;  // that it is of
  _Atomic int32_t refs;
} pw_numbered;

typedef struct {
  pthread_mutex_t mu;  // guards the rest
  struct pw_place* places;
  size_t room;
  uint32_t num_places, free_place;
  int64_t count;
} pw_numbers;
#define PW_NUMBERS {.mu = PTHREAD_MUTEX_INITIALIZER}

// Put takes a reference, and returns 0 where memory is short; then it takes none. Find gives one more, or, to take the
// thing out of the table, the table's. NULL: the number names nothing.
uint64_t pw_numbers_put(pw_numbers* table, pw_numbered* thing);
void* pw_numbers_find(pw_numbers* table, uint64_t number, bool take);
// pw_numbers_next takes out the first thing of a client that stands at a place or behind
// it, which moves on. NULL: there are no more.
void* pw_numbers_next(pw_numbers* table, const void* client, uint32_t* place);
int64_t pw_numbers_count(pw_numbers* table);

#endif  // PATHWAYS_CAPI_BASE_NUMBERS_H_
