// Views: the bytes of a shard in this process. A worker of this host has written them into shared memory, where NumPy,
// DLPack and the C API read them without a copy. Bytes that travel inside a message or come from another host, and
// those for which there is no shared memory left, are in memory of the view's own.
//
// jaxlib calls IsOnCpu for arrays that it is about to read or to prefetch (copy_to_host_async), and for no others; if
// the answer is yes, the next thing it asks for is the address. So IsOnCpu requests the bytes; otherwise reads of many
// arrays would follow one after the other. They are requested once, and stay as long as the shard or a reader of them.
// A shard whose bytes cannot be lent is not on the CPU; ToHostBuffer copies it, and also returns its error if it has
// one.
//
// A view is memory of this process alone. A device never sees what is written there.
#include <pthread.h>
#include <stdlib.h>

#include "_cgo_export.h"
#include "interpreter.h"
#include "cluster.h"

enum { kListenNs = 100000000 };  // how often a waiting read checks for Ctrl-C

struct pr_view {
  bool held;    // its buffer refers to it
  bool coming;  // Go has a pointer to it
  bool failed;
  int32_t looks;  // external references
  char* data;     // NULL until it has arrived
  char* room;     // for bytes that come in no block, or NULL
  uint64_t block;  // of the block, in Go; 0: none
  uint64_t forks;  // of this process, when the bytes arrived
  pr_future* arrived;  // has no callbacks
};

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;  // guards all views, and the buffers' pointers to them

// over frees a view that nothing uses any more, under mu. It returns the block to be returned, or 0.
static uint64_t over(pr_view* v) {
  if (v->held || v->looks > 0) return 0;
  uint64_t block = v->block;
  if (v->forks != atomic_load(&pw_forks)) block = 0;  // a forked child may be reading it, so it is never used again
  v->block = 0;
  v->data = NULL;
  if (!v->coming) {
    pr_future_drop(v->arrived);
    free(v->room);
    free(v);
    PR_COUNT(views, -1);
  }
  return block;
}

static void give_back(uint64_t block) {
  if (block == 0) return;
  PR_COUNT(go_entries, 1);
  prGoReturn(block);
}

char* pr_view_room(pr_view* v, size_t size) {
  enum { kAlign = 64 };  // JAX copies what DLPack shows it at other addresses
  return v->room = pw_aligned(kAlign, size);
}

bool pr_view_came(pr_view* v, char* data, uint64_t block) {
  pthread_mutex_lock(&mu);
  v->coming = false;
  bool wanted = v->held || v->looks > 0;
  pr_future* arrived = pr_future_hold(v->arrived);
  if (wanted) {
    v->data = data;
    v->block = block;
    v->forks = atomic_load(&pw_forks);
  } else {
    over(v);
  }
  pthread_mutex_unlock(&mu);
  pr_future_set(arrived, 0, NULL);
  pr_future_drop(arrived);
  return wanted;
}

void pr_view_failed(pr_view* v, PJRT_Error_Code code, char* message) {
  pthread_mutex_lock(&mu);
  v->coming = false;
  v->failed = true;
  pr_future* arrived = pr_future_hold(v->arrived);
  over(v);
  pthread_mutex_unlock(&mu);
  pr_future_set(arrived, code, message);
  pr_future_drop(arrived);
}

pr_future* pr_view_arrived(pr_buffer* b) {
  if (atomic_load_explicit(&b->view, memory_order_acquire) == NULL) return NULL;
  pthread_mutex_lock(&mu);
  pr_view* v = b->view;
  pr_future* arrived = v && v->data ? pr_future_hold(v->arrived) : NULL;
  pthread_mutex_unlock(&mu);
  return arrived;
}

void pr_view_leave(pr_buffer* b) {
  if (atomic_load_explicit(&b->view, memory_order_acquire) == NULL) return;
  uint64_t block = 0;
  pthread_mutex_lock(&mu);
  pr_view* v = b->view;
  if (v && v->held) {
    v->held = false;
    if (v->looks == 0) b->view = NULL;
    block = over(v);
  }
  pthread_mutex_unlock(&mu);
  give_back(block);
}

void pr_view_end(pr_buffer* b) {
  if (atomic_load_explicit(&b->view, memory_order_acquire) == NULL) return;
  pthread_mutex_lock(&mu);
  pr_view* v = b->view;
  b->view = NULL;
  v->held = false;
  v->looks = 0;
  uint64_t block = over(v);
  pthread_mutex_unlock(&mu);
  give_back(block);
}

// lendable reports whether a shard's bytes would look the same here as on its device. An array of a GPU that is
// exported by DLPack would claim to be there, so only those of CPUs are.
static bool lendable(const pr_buffer* b) {
  const pw_shape* s = b->shape;
  return b->symbol == NULL && b->object->base.name.number != 0 && b->minor_to_major == NULL && pr_host_bytes(s) >= 0 &&
         (pw_type_bits(s->type) >= 8 || s->type == PJRT_Buffer_Type_PRED) &&
         strcmp(b->device->client->topology.platform, "cpu") == 0;
}

// send_for requests a shard's bytes, unless they were requested before. It returns false if memory is short.
static bool send_for(pr_buffer* b) {
  if (!lendable(b) || atomic_load_explicit(&b->view, memory_order_acquire)) return true;
  pr_view* v = pw_zeros(1, sizeof *v);
  pr_future* arrived = v ? pr_future_new(1) : NULL;
  if (arrived == NULL) {
    free(v);
    return false;
  }
  v->held = v->coming = true;
  v->arrived = arrived;
  pthread_mutex_lock(&mu);
  bool first = b->view == NULL && !atomic_load_explicit(&b->gone, memory_order_acquire);
  if (first) b->view = v;
  pthread_mutex_unlock(&mu);
  if (!first) {
    pr_future_drop(arrived);
    free(v);
    return true;
  }
  PR_COUNT(views, 1);
  char* message = NULL;
  PR_COUNT(go_entries, 1);
  PR_COUNT(host_fetches, 1);
  int code = prGoLend(b->object->base.name.session, b->object->base.name.number, (uint32_t)b->device->description.id,
                      (size_t)pr_host_bytes(b->shape), v, &message);
  if (code) pr_view_failed(v, (PJRT_Error_Code)code, message);
  return true;
}

static PJRT_Error* elsewhere(const char* slot) {
  return pw_error(PJRT_Error_Code_UNIMPLEMENTED,
                  "%s: the array is in the memory of another process; read it with numpy.asarray()", slot);
}

// look waits for a shard's bytes, returns their address, and adds looks references. jaxlib has released the GIL here.
static PJRT_Error* look(pr_buffer* b, const char* slot, int32_t more, void** data) {
  if (pw_forked) return pw_forked_error();
  pp_reads(b->symbol);
  PJRT_Error* none = pr_unmade(b);
  if (none) return none;
  if (!send_for(b)) return pw_short("the bytes of an array", sizeof(pr_view));
  pthread_mutex_lock(&mu);
  pr_view* v = b->view;
  pr_future* arrived = v ? pr_future_hold(v->arrived) : NULL;
  pthread_mutex_unlock(&mu);
  if (arrived == NULL) return elsewhere(slot);
  PJRT_Error* err = NULL;
  while (err == NULL && pr_future_state(arrived) == PR_PENDING) {
    pr_future_wait_for(arrived, kListenNs);
    void* exception = pr_future_state(arrived) == PR_PENDING ? pw_python_interrupted() : NULL;
    if (exception == NULL) continue;
    pw_python_raise(exception);
    err = pw_error(PJRT_Error_Code_CANCELLED, "reading the array was interrupted; its bytes still arrive");
  }
  if (err == NULL) err = pr_future_error(arrived);
  pr_future_drop(arrived);
  if (err) return err;
  pthread_mutex_lock(&mu);
  v = b->view;
  *data = v ? v->data : NULL;
  if (*data) v->looks += more;
  pthread_mutex_unlock(&mu);
  return *data ? NULL : pw_deleted(slot);
}

// ---- slots ----

PJRT_Error* pr_PJRT_Buffer_IsOnCpu(PJRT_Buffer_IsOnCpu_Args* args) {
  ANY(b, args->buffer, "PJRT_Buffer_IsOnCpu");
  args->is_on_cpu = b->symbol != NULL;  // its reader asks for the address next, and gets the error
  if (b->symbol || pw_forked) return NULL;
  if (!send_for(b)) return pw_short("the bytes of an array", sizeof(pr_view));
  pthread_mutex_lock(&mu);
  pr_view* v = b->view;
  args->is_on_cpu = v && !v->failed;
  pthread_mutex_unlock(&mu);
  return NULL;
}

// A reference is counted once the bytes are here: a caller that gets an error has none to drop.
PJRT_Error* pr_PJRT_Buffer_IncreaseExternalReferenceCount(PJRT_Buffer_IncreaseExternalReferenceCount_Args* args) {
  LIVE(b, args->buffer, "PJRT_Buffer_IncreaseExternalReferenceCount");
  void* data;
  return look(b, "PJRT_Buffer_IncreaseExternalReferenceCount", 1, &data);
}

PJRT_Error* pr_PJRT_Buffer_DecreaseExternalReferenceCount(PJRT_Buffer_DecreaseExternalReferenceCount_Args* args) {
  if (pw_forked) return NULL;
  ANY(b, args->buffer, "PJRT_Buffer_DecreaseExternalReferenceCount");
  pthread_mutex_lock(&mu);
  pr_view* v = b->view;
  bool counted = v && v->looks > 0;
  uint64_t block = 0;
  if (counted) {
    v->looks--;
    if (v->looks == 0 && !v->held) b->view = NULL;
    block = over(v);
  }
  pthread_mutex_unlock(&mu);
  give_back(block);
  return counted ? NULL
                 : pw_error(PJRT_Error_Code_FAILED_PRECONDITION,
                            "PJRT_Buffer_DecreaseExternalReferenceCount: the buffer has no external references");
}

PJRT_Error* pr_PJRT_Buffer_OpaqueDeviceMemoryDataPointer(PJRT_Buffer_OpaqueDeviceMemoryDataPointer_Args* args) {
  ANY(b, args->buffer, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer");
  return look(b, "PJRT_Buffer_OpaqueDeviceMemoryDataPointer", 0, &args->device_memory_ptr);
}
