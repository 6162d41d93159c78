// Arrays outside of a PJRT client: taken out of it by an export program, or made for one and passed to it by an import
// program. pathways.h in capi/python says how they are used; this file says what a frontend has to implement.
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

// pw_export begins a frontend's own struct for such an array. It is made with one reference.
typedef struct pw_export pw_export;
typedef struct {
  void (*free)(pw_export* exported);  // with the last reference
  // reshard makes an array of the same elements by a plan (Get in export.go), without waiting for them. It writes out
  // and returns NULL, or returns a malloc'd "CODE: text".
  char* (*reshard)(pw_export* exported, uint64_t plan, pw_export** out);
} pw_export_methods;

struct pw_export {
  pw_numbered base;
  const pw_export_methods* methods;
};

void pw_export_drop(pw_export* exported);  // drops one reference

// Arrays by the numbers that the C API has for them. pw_export_put takes a reference, and returns 0 if memory is short;
// pw_export_take returns the table's reference, and the array leaves the table; pw_export_find returns one more. NULL:
// the number names no array.
uint64_t pw_export_put(pw_export* exported);
pw_export* pw_export_take(uint64_t number);
pw_export* pw_export_find(uint64_t number);

// pw_exported passes arrays to the calling thread, which takes their references. It returns false, and takes none, if
// memory is short.
bool pw_exported(pw_export* const* exported, size_t n);
// pw_imported writes the n arrays that the calling thread is about to import, with a reference each. It returns false
// if the thread has named none, or another number of them.
bool pw_imported(pw_export** exported, size_t n);
// pw_export_end drops every exported array of a client that ends.
void pw_export_end(const void* client);
int64_t pw_export_count(void);

#endif  // PATHWAYS_CAPI_EXPORT_EXPORT_H_
