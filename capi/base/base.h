// What the frontends of this library have in common: reading a peer's structs, errors, shapes, and refusing to run in
// the child of a fork.
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

// PW_COPY makes a struct of this version from a caller's: fields that the caller does not know are zero, and fields
// that are not known here are left out. Plugins refuse structs shorter than their own, so this also serves callers of
// older versions. Callers are rarely older, and a copy of a size that the compiler knows takes a tenth of the time.
#define PW_COPY(type, name, from)                        \
  type name;                                             \
  if ((from)->struct_size >= sizeof name) {              \
    name = *(from);                                      \
  } else {                                               \
    memset(&name, 0, sizeof name);                       \
    memcpy(&name, (from), (from)->struct_size);          \
  }                                                      \
  name.struct_size = type##_STRUCT_SIZE

// PW_COVERS reports whether the caller's struct is large enough to have the field.
#define PW_COVERS(args, field) \
  ((args)->struct_size >= offsetof(__typeof__(*(args)), field) + sizeof((args)->field))

// PW_READS defines a slot of a frontend that only reads, and cannot fail.
#define PW_READS(frontend, slot, ...)                \
  PJRT_Error* frontend##_##slot(slot##_Args* args) { \
    __VA_ARGS__;                                     \
    return NULL;                                     \
  }

// ---- memory of C (alloc.c, text.c) ----

// Memory that the caller frees, or NULL if memory is short: every caller checks, and turns NULL into an error of the
// call that needed it. Like malloc, calloc, realloc and aligned_alloc, but a size of 0 is a block too.
void* pw_alloc(size_t size) __attribute__((malloc, warn_unused_result));
void* pw_zeros(size_t n, size_t size) __attribute__((malloc, warn_unused_result));
void* pw_resize(void* block, size_t size) __attribute__((warn_unused_result));
void* pw_aligned(size_t alignment, size_t size) __attribute__((malloc, warn_unused_result));
// pw_copy returns a copy followed by a zero byte.
void* pw_copy(const void* from, size_t size) __attribute__((malloc, warn_unused_result));
char* pw_copy_text(const char* text) __attribute__((malloc, warn_unused_result));
// pw_grow makes room for one more element in *list, which has n elements of this size.
bool pw_grow(void* list, size_t n, size_t* room, size_t size) __attribute__((warn_unused_result));
// pw_short returns the error of an allocation that failed: what for, and of how many bytes.
PJRT_Error* pw_short(const char* what, size_t bytes);
// Refusals are the errors of the C API for Python, "CODE: text"; NULL is success. If there is no memory for such a
// text, pw_refusal returns a static one that says so.
char* pw_refusal(char* text);
void pw_refusal_free(char* text);
#ifdef PW_INVARIANTS
void pw_alloc_fails_after(int64_t n);  // see invariants_on.go
int64_t pw_alloc_left(void);
#endif

// pw_text formats a text that the caller frees.
char* pw_text(const char* format, ...) __attribute__((format(printf, 1, 2)));
char* pw_text_of(const char* format, va_list list) __attribute__((format(printf, 1, 0)));

// ---- errors (error.c) ----

// pw_error makes an error of this library; the caller of the frontend owns it.
PJRT_Error* pw_error(PJRT_Error_Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));
// pw_error_take makes an error from a malloc'd message and frees the message. If memory is short it returns a static
// error that says so.
PJRT_Error* pw_error_take(PJRT_Error_Code code, char* message);
// pw_error_context takes an error, and returns one with the same code, its text without payloads, and context after the
// text.
PJRT_Error* pw_error_context(PJRT_Error* error, const char* context);
void pw_error_read(const PJRT_Error* error, PJRT_Error_Code* code, const char** message, size_t* size);
void pw_error_free(PJRT_Error* error);
// pw_errors_of sets the table of the plugin whose errors pass through this library: it reads and frees every error that
// is not this library's own. Called before the first such error.
void pw_errors_of(const PJRT_Api* api);
bool pw_error_ours(const PJRT_Error* error);
extern _Atomic int64_t pw_errors_alive;
void pw_base_PJRT_Error_Destroy(PJRT_Error_Destroy_Args* args);
void pw_base_PJRT_Error_Message(PJRT_Error_Message_Args* args);
PJRT_Error* pw_base_PJRT_Error_GetCode(PJRT_Error_GetCode_Args* args);

// ---- shapes (shape.c) ----

// pw_shape is the shape of an executable's output or of a host array. Counted, and never changed.
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
static inline const int64_t* pw_shape_dims(const pw_shape* shape) { return shape->dims; }  // for Go
static inline bool pw_shape_same(const pw_shape* a, const pw_shape* b) {
  return a == b || (a->type == b->type && a->num_dims == b->num_dims &&
                    memcmp(a->dims, b->dims, a->num_dims * sizeof *a->dims) == 0);
}
// pw_shape_text writes a shape as XLA does, such as f32[4,8].
void pw_shape_text(const pw_shape* shape, char* text, size_t size);
int pw_type_bits(PJRT_Buffer_Type type);  // of one element; 0 for tokens

// ---- layouts ----

// pw_descending writes the order of n dimensions, minor first, of elements that lie row by row.
static inline const int64_t* pw_descending(int64_t* order, size_t n) {
  for (size_t i = 0; i < n; i++) order[i] = (int64_t)(n - 1 - i);
  return order;
}
// pw_tiled returns the layout of an order of dimensions. The layout refers to order, which must outlive it.
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

// pw_gone is the error of an argument that no longer exists. buffer is NULL if the handle itself was destroyed, and is
// used for nothing else.
PJRT_Error* pw_gone(size_t row, size_t arg, const char* program, const void* buffer);
PJRT_Error* pw_foreign(size_t arg, const char* program);
PJRT_Error* pw_twice(size_t row, size_t arg, const char* program);  // of one that another argument donates
// pw_buffer_gone is the error of a slot that is called with a buffer that was destroyed.
PJRT_Error* pw_buffer_gone(const char* slot);  // it was destroyed
PJRT_Error* pw_deleted(const char* slot);
// pw_fits compares a shard with what a program takes; pw_misfit is the error if they differ. Tokens have no shape of
// their own, so every shape fits a token.
static inline bool pw_fits(const pw_shape* shape, const pw_shape* takes) {
  return takes->type == PJRT_Buffer_Type_TOKEN || pw_shape_same(shape, takes);
}
PJRT_Error* pw_misfit(size_t row, size_t arg, const char* program, const pw_shape* shape, const pw_shape* takes);

// ---- memories (memory.c) ----

// pw_memory_base begins every memory handle. Clients reach a table of functions through it, by which they attach data
// to the memory (memory.c).
typedef struct {
  PJRT_Memory base;
  struct pw_user_data* _Atomic data;
} pw_memory_base;

void pw_memory_init(pw_memory_base* memory);
void pw_memory_close(pw_memory_base* memory);  // frees the attached data

// pw_account counts the memory that the arrays of one client take on a device. Any thread may count and read; limit,
// share and host are set before the first thread does.
typedef struct {
  _Atomic int64_t in_use, peak;     // bytes
  _Atomic int64_t arrays, largest;  // shards made so far, and the bytes of the largest
  int64_t limit;                    // bytes that arrays may take; 0: unknown
  int64_t share;                    // of limit, if every device of the machine takes as much; 0: unknown
  bool host;                        // whether all memories of the device are host memory, and are counted together
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

// pw_memory_stats answers from an account; pw_memory_more adds what a plugin has left out of its own answer. A number
// that is not known stays unset.
void pw_memory_stats(PJRT_Device_MemoryStats_Args* args, const pw_account* account);
void pw_memory_more(PJRT_Device_MemoryStats_Args* args, const pw_account* account);

// ---- costs (cost.go) ----

// pwGoCost counts what a compiled program costs. The values and their names are one malloc'd block. It returns 0, or a
// code and a malloc'd message.
extern int pwGoCost(char* format, size_t format_size, char* program, size_t size, PJRT_NamedValue** values, size_t* num,
                    char** message);

// pw_library returns the path of the file that this code was loaded from; "" where that is not known.
const char* pw_library(void);

// pw_thread returns the number that the system has for the calling thread, and asks it once.
int32_t pw_thread(void);

// ---- forks (fork.c) ----

// Set in the child of a fork: Go does not run there.
extern bool pw_forked;
extern _Atomic uint64_t pw_forks;  // forks that this process has begun
PJRT_Error* pw_forked_error(void);
char* pw_forked_refusal(void);  // as a refusal

// ---- where the user's program is (location.c) ----

enum { PW_LOCATION = 512 };
// pw_location writes where the user's program made the call that is on this thread: the options of the call say so, or
// else the client. It leaves text as it is if neither does.
int pw_location(const PJRT_ExecuteOptions* options, char* text, int size);

// A client may say where its program is: locate writes "file:line" of the caller's frame into text and returns its
// length, or 0. It is called for errors, for runs that have to wait, and for the first run of a program on a cluster,
// but for no other run that is launched at once. NULL unsets it.
typedef int (*pw_locate)(char* text, int size);
void pw_set_locate(pw_locate locate);

#endif  // PATHWAYS_CAPI_BASE_BASE_H_
