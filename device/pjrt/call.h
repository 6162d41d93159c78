// How the .c files of this package call a slot.
#ifndef PATHWAYS_DEVICE_PJRT_CALL_H_
#define PATHWAYS_DEVICE_PJRT_CALL_H_

#include <stdatomic.h>
#include <string.h>

#include "driver.h"

// Objects that plugins have made for this package and that it has not returned.
typedef struct {
  _Atomic int64_t clients, executables, loaded_executables, buffers, events, contexts, errors, incoming;
} pwdrv_counts;
extern pwdrv_counts pwdrv_live;
#define PWDRV_COUNT(kind, n) atomic_fetch_add_explicit(&pwdrv_live.kind, (n), memory_order_relaxed)
// Counts one more, if a call returned one.
#define PWDRV_MADE(kind, handle) PWDRV_COUNT(kind, (handle) != NULL)

static inline PJRT_Error* pwdrv_counted(PJRT_Error* error) {
  PWDRV_MADE(errors, error);
  return error;
}

// A zeroed args struct of a slot, with its size set.
#define PWDRV_ARGS(slot) slot##_Args args = {.struct_size = slot##_Args_STRUCT_SIZE}

// Calls a slot with args; if the plugin's table ends before the slot, names it as missing.
#define PWDRV_CALL(api, slot) \
  (PWDRV_HAS(api, slot) ? (pwdrv_status){pwdrv_counted((api)->slot(&args)), NULL} : (pwdrv_status){NULL, #slot})

#define PWDRV_FAILED(status) ((status).error != NULL || (status).missing != NULL || (status).lacks != 0)

// A call of a function that returns if the call fails: in sets the arguments, and what follows copies the results out,
// even if the call fails.
#define PWDRV_STEP(slot, in, ...)                 \
  do {                                            \
    PWDRV_ARGS(slot);                             \
    in;                                           \
    pwdrv_status status = PWDRV_CALL(api, slot);  \
    __VA_ARGS__;                                  \
    if (PWDRV_FAILED(status)) return status;      \
  } while (0)

// The last call of a function, or the only one.
#define PWDRV_DO(slot, in, ...)            \
  do {                                     \
    PWDRV_STEP(slot, in, __VA_ARGS__);     \
    return (pwdrv_status){NULL, NULL};     \
  } while (0)

// Memory of C, zeroed, or a copy followed by a zero byte. NULL if memory is short: the caller's status is then
// PWDRV_LACKS of this many bytes.
void* pwdrv_alloc(size_t size);
void* pwdrv_copy(const void* data, size_t size);
#define PWDRV_LACKS(size) ((pwdrv_status){NULL, NULL, (size) + 1})

#endif  // PATHWAYS_DEVICE_PJRT_CALL_H_
