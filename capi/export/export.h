// Arrays that are held outside of a PJRT client: taken out of it by an export
// program, or made for one and given to it by an import program. capi/python
// says, in pathways.h, how it is used; here is what a door has to do.
//
// Every function may be called from any thread.
#ifndef PATHWAYS_CAPI_EXPORT_EXPORT_H_
#define PATHWAYS_CAPI_EXPORT_EXPORT_H_

#include <stddef.h>

#include "numbers.h"

// Programs of these names are not run.
#define PW_EXPORT "jit___pathways_export"
#define PW_IMPORT "jit___pathways_import"

typedef enum { PW_RUNS = 0, PW_EXPORTS, PW_IMPORTS } pw_port;
pw_port pw_port_of(const char* program);

// pw_held begins a door's own struct. A door makes it with one reference.
typedef struct pw_held pw_held;
typedef struct {
  void (*free)(pw_held* held);  // with the last reference
  // reshard makes an array of this one's elements by a plan (see Get in held.go),
  // without waiting for them. It gives NULL and out, or a malloc'd "CODE: text".
  char* (*reshard)(pw_held* held, uint64_t plan, pw_held** out);
} pw_held_door;

struct pw_held {
  pw_numbered base;
  const pw_held_door* door;
};

void pw_held_drop(pw_held* held);  // gives up one reference

// Arrays by the numbers that the C API has for them. Put takes a reference, and returns 0
// where there is no memory; take
// gives it, find gives one more; NULL: no such array is held.
uint64_t pw_held_put(pw_held* held);
pw_held* pw_held_take(uint64_t number);
pw_held* pw_held_find(uint64_t number);

// pw_exported tells the calling thread of arrays; it takes their references. False: there is
// no memory for that, and they stay the caller's.
bool pw_exported(pw_held* const* held, size_t n);
// pw_imported takes the n arrays that the calling thread is about to import, with
// a reference each. False where it named none, or another number of them.
bool pw_imported(pw_held** held, size_t n);
// pw_held_end lets go of whatever is held of a client that ends.
void pw_held_end(const void* client);
int64_t pw_held_count(void);

#endif  // PATHWAYS_CAPI_EXPORT_EXPORT_H_
