// The numbers by which the C API names objects. A number is a place in a table and how often that place was used, so
// that the number of an object that has ended names nothing.
//
// Every function may be called from any thread.
#ifndef PATHWAYS_CAPI_BASE_NUMBERS_H_
#define PATHWAYS_CAPI_BASE_NUMBERS_H_

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

// pw_numbered begins the struct of an object that has a number.
typedef struct {
  void* client;  // whose object it is
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

// pw_numbers_put takes a reference, and returns 0, without taking it, if memory is short. pw_numbers_find returns one
// more reference, or with take the table's own, and the object leaves the table. NULL: the number names nothing.
uint64_t pw_numbers_put(pw_numbers* table, pw_numbered* thing);
void* pw_numbers_find(pw_numbers* table, uint64_t number, bool take);
// pw_numbers_next takes the first object of a client at place *at or after it out of the table, and moves *at on. NULL:
// there are no more.
void* pw_numbers_next(pw_numbers* table, const void* client, uint32_t* place);
int64_t pw_numbers_count(pw_numbers* table);

#endif  // PATHWAYS_CAPI_BASE_NUMBERS_H_
