// What the doors of this library have in common: how they read a peer's
// structs, make errors, describe shapes, and refuse to run in the child of a
// fork.
#ifndef PATHWAYS_CAPI_BASE_BASE_H_
#define PATHWAYS_CAPI_BASE_BASE_H_

#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "pjrt_abi.h"

enum { PW_ABI_MINOR = 114 };  // of pjrt_abi.h

// PW_ARGS declares a zeroed argument struct with its size set.
#define PW_ARGS(type, name) \
  type name;                \
  memset(&name, 0, sizeof name); \
  name.struct_size = type##_STRUCT_SIZE

// PW_COPY makes a struct of this version of a caller's: what the caller does not
// know is zero, and what is not known here is left out. A plugin refuses structs
// that are shorter than its own, so callers older than it get on with it, too.
#define PW_COPY(type, name, from)                                                              \
  type name;                                                                                   \
  memset(&name, 0, sizeof name);                                                               \
  memcpy(&name, (from), (from)->struct_size < sizeof name ? (from)->struct_size : sizeof name); \
  name.struct_size = type##_STRUCT_SIZE

// PW_COVERS: the caller's struct is large enough to have the field.
#define PW_COVERS(args, field) \
  ((args)->struct_size >= offsetof(__typeof__(*(args)), field) + sizeof((args)->field))

// PW_READS defines a slot of a door that only reads, and cannot fail.
#define PW_READS(door, slot, ...)                \
  PJRT_Error* door##_##slot(slot##_Args* args) { \
    __VA_ARGS__;                                 \
    return NULL;                                 \
  }

// ---- memory of C (alloc.c, text.c) ----

// Memory that the caller frees, or NULL where there is none: every caller looks, and makes
// that the error of what it was called for. As malloc, calloc, realloc and aligned_alloc;
// a size of 0 is a block too.
void* pw_alloc(size_t size) __attribute__((malloc, warn_unused_result));
void* pw_zeros(size_t n, size_t size) __attribute__((malloc, warn_unused_result));
void* pw_resize(void* block, size_t size) __attribute__((warn_unused_result));
void* pw_aligned(size_t alignment, size_t size) __attribute__((malloc, warn_unused_result));
// pw_copy returns a copy with a zero byte behind it.
void* pw_copy(const void* from, size_t size) __attribute__((malloc, warn_unused_result));
char* pw_copy_text(const char* text) __attribute__((malloc, warn_unused_result));
// pw_grow makes room for one more in a list, given by its address, of n elements of a size.
bool pw_grow(void* list, size_t n, size_t* room, size_t size) __attribute__((warn_unused_result));
// pw_short is the error of memory that is not there: what for, and how much.
PJRT_Error* pw_short(const char* what, size_t bytes);
// Refusals are the errors of the C API for Python, "CODE: text", and NULL is none of them.
// So where a text cannot be had for want of memory, pw_refusal returns one that says that.
char* pw_refusal(char* text);
void pw_refusal_free(char* text);
#ifdef PW_INVARIANTS
void pw_alloc_fails_after(int64_t n);  // see invariants_on.go
int64_t pw_alloc_left(void);
#endif

// pw_text writes a text that the caller frees.
char* pw_text(const char* format, ...) __attribute__((format(printf, 1, 2)));
char* pw_text_of(const char* format, va_list list) __attribute__((format(printf, 1, 0)));

// ---- errors (error.c) ----

// pw_error makes an error of ours; the caller of the door owns it.
PJRT_Error* pw_error(PJRT_Error_Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// pw_error_take makes an error from a malloc'd message and frees the message. Where memory
// is short for an error, it is one that says that.
PJRT_Error* pw_error_take(PJRT_Error_Code code, char* message);
// pw_error_context takes an error and gives one with the same code and
// payload-free text, and context behind the text.
PJRT_Error* pw_error_context(PJRT_Error* error, const char* context);
void pw_error_read(const PJRT_Error* error, PJRT_Error_Code* code, const char** message, size_t* size);
void pw_error_free(PJRT_Error* error);
// pw_errors_of names the table of the plugin whose errors pass through this library: what is
// not ours is read and freed by it. Called before the first of them.
void pw_errors_of(const PJRT_Api* api);
bool pw_error_ours(const PJRT_Error* error);
extern _Atomic int64_t pw_errors_alive;
void pw_base_PJRT_Error_Destroy(PJRT_Error_Destroy_Args* args);
void pw_base_PJRT_Error_Message(PJRT_Error_Message_Args* args);
PJRT_Error* pw_base_PJRT_Error_GetCode(PJRT_Error_GetCode_Args* args);

// ---- shapes (shape.c) ----

// pw_shape is what an executable's output or a host array fixed. Counted.
typedef struct pw_shape {
  _Atomic int32_t refs;
  PJRT_Buffer_Type type;
  size_t num_dims;
  int64_t dims[];
} pw_shape;

pw_shape* pw_shape_new(PJRT_Buffer_Type type, const int64_t* dims, size_t num_dims);  // NULL: no memory
static inline pw_shape* pw_shape_hold(pw_shape* shape, int32_t times) {
  atomic_fetch_add_explicit(&shape->refs, times, memory_order_relaxed);
  return shape;
}
void pw_shape_drop(pw_shape* shape);
int64_t pw_shape_bytes(const pw_shape* shape);
static inline bool pw_shape_same(const pw_shape* a, const pw_shape* b) {
  return a == b || (a->type == b->type && a->num_dims == b->num_dims &&
                    memcmp(a->dims, b->dims, a->num_dims * sizeof *a->dims) == 0);
}
// Writes a shape as XLA does, such as f32[4,8].
void pw_shape_text(const pw_shape* shape, char* text, size_t size);
int pw_type_bits(PJRT_Buffer_Type type);  // of one element; 0 for tokens

// ---- layouts ----

// pw_descending writes the order of n dimensions, from the minor one, of elements that
// lie row by row.
static inline const int64_t* pw_descending(int64_t* order, size_t n) {
  for (size_t i = 0; i < n; i++) order[i] = (int64_t)(n - 1 - i);
  return order;
}
// pw_tiled gives the layout of an order, which has to stay.
static inline PJRT_Buffer_MemoryLayout pw_tiled(const int64_t* order, size_t n) {
  PW_ARGS(PJRT_Buffer_MemoryLayout, layout);
  layout.type = PJRT_Buffer_MemoryLayout_Type_Tiled;
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = order;
  layout.tiled.minor_to_major_size = n;
  return layout;
}
static inline bool pw_row_by_row(const PJRT_Buffer_MemoryLayout* layout, size_t n) {
  bool is = layout->type == PJRT_Buffer_MemoryLayout_Type_Tiled && layout->tiled.num_tiles == 0 &&
            layout->tiled.minor_to_major_size == n;
  for (size_t i = 0; is && i < n; i++) is = layout->tiled.minor_to_major[i] == (int64_t)(n - 1 - i);
  return is;
}

// ---- arguments (argument.c) ----

// pw_gone is the error of an argument that is no more; of buffer only matters that
// it is NULL where it was destroyed.
PJRT_Error* pw_gone(size_t row, size_t arg, const char* program, const void* buffer);
PJRT_Error* pw_foreign(size_t arg, const char* program);
// What is wrong with the buffer that a slot of the table is called with.
PJRT_Error* pw_buffer_gone(const char* slot);  // it was destroyed
PJRT_Error* pw_deleted(const char* slot);
// pw_fits compares a shard with what a program takes; pw_misfit is the error where
// it does not. Tokens have no shape of their own; clients pass what they like.
static inline bool pw_fits(const pw_shape* shape, const pw_shape* takes) {
  return takes->type == PJRT_Buffer_Type_TOKEN || pw_shape_same(shape, takes);
}
PJRT_Error* pw_misfit(size_t row, size_t arg, const char* program, const pw_shape* shape, const pw_shape* takes);

// ---- memories (memory.c) ----

// pw_memory_base begins every memory handle: clients reach a table of functions
// through it, by which they hang data on the memory (memory.c).
typedef struct {
  PJRT_Memory base;
  struct pw_user_data* data;
} pw_memory_base;

void pw_memory_init(pw_memory_base* memory);
void pw_memory_close(pw_memory_base* memory);  // ends the data

// pw_account counts the memory that the arrays of one client take on a device. Any
// thread may count and read; the sizes are fixed before the first does.
typedef struct {
  _Atomic int64_t in_use, peak;     // bytes
  _Atomic int64_t arrays, largest;  // shards made so far, and the bytes of the largest
  int64_t limit;                    // bytes that arrays may take; 0: not known
  int64_t share;                    // of limit, when all devices of the machine take as much; 0: not known
  bool host;                        // all memories of the device are the machine's, and count
} pw_account;

static inline void pw_account_max(_Atomic int64_t* most, int64_t n) {
  int64_t now = atomic_load_explicit(most, memory_order_relaxed);
  while (n > now && !atomic_compare_exchange_weak_explicit(most, &now, n, memory_order_relaxed, memory_order_relaxed)) {
  }
}

static inline void pw_account_add(pw_account* a, int64_t bytes) {
  int64_t now = atomic_fetch_add_explicit(&a->in_use, bytes, memory_order_relaxed) + bytes;
  atomic_fetch_add_explicit(&a->arrays, 1, memory_order_relaxed);
  pw_account_max(&a->peak, now);
  pw_account_max(&a->largest, bytes);
}

static inline void pw_account_sub(pw_account* a, int64_t bytes) {
  atomic_fetch_sub_explicit(&a->in_use, bytes, memory_order_relaxed);
}

// pw_memory_stats answers from an account; pw_memory_more adds what a plugin has left
// out of its own answer. A number that is not known stays unset.
void pw_memory_stats(PJRT_Device_MemoryStats_Args* args, const pw_account* account);
void pw_memory_more(PJRT_Device_MemoryStats_Args* args, const pw_account* account);

// ---- costs (cost.go) ----

// pwGoCost counts what a compiled program costs. The values and their names are
// one malloc'd block. It gives 0, or a code with a malloc'd message.
extern int pwGoCost(char* format, size_t format_size, char* program, size_t size, PJRT_NamedValue** values, size_t* num,
                    char** message);

// pw_library returns the path of the file that this code was loaded from; "" where that is not known.
const char* pw_library(void);

// ---- forks (fork.c) ----

// True in the child of a fork: Go does not run there.
extern bool pw_forked;
extern _Atomic uint64_t pw_forks;  // begun by this process
PJRT_Error* pw_forked_error(void);
char* pw_forked_refusal(void);  // the same as a refusal

// ---- where the user's program is (location.c) ----

enum { PW_LOCATION = 512 };
// pw_location writes where the user's program made the call that is on this
// thread, as its options or its client say; text stays as it is where nobody does.
int pw_location(const PJRT_ExecuteOptions* options, char* text, int size);

// A client may say where its program is: locate writes "file:line" of the caller's
// frame into text and gives its length, or 0. It is asked for errors and for runs
// that have to wait, never on the way of a run that is launched at once. NULL
// unsets it.
typedef int (*pw_locate)(char* text, int size);
void pw_set_locate(pw_locate locate);

#endif  // PATHWAYS_CAPI_BASE_BASE_H_
