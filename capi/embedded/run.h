// What a run that is launched at once (execute.c) and a run that waits for its turn (wait.c) have in common.
#ifndef PATHWAYS_CAPI_EMBEDDED_RUN_H_
#define PATHWAYS_CAPI_EMBEDDED_RUN_H_

#include "embedded.h"

// An argument that was copied to the device that needs it.
typedef struct pw_moved {
  struct pw_moved* next;
  PJRT_Buffer* buffer;
} pw_moved;

void pw_moves_free(pw_moved* list);
void pw_destroy_buffer(PJRT_Buffer* under);
void pw_destroy_event(PJRT_Event* event);

typedef struct pw_kept pw_kept;  // what a run keeps counted, see room.h

// pw_call is one Execute: its arguments, and what its steps have found and made. The lists live as long as the call.
typedef struct {
  PJRT_LoadedExecutable_Execute_Args* args;  // of this version
  PJRT_ExecuteOptions options;               // of this version
  PJRT_LoadedExecutable* e;
  PJRT_Device* only;  // the one device to run on, or NULL
  size_t n, m, outs;  // devices; and arguments and results of each
  pw_buffer** inputs;         // n * m, device by device
  PJRT_Buffer** flat;         // the plugin's buffers, in the same order, each on its device
  PJRT_Buffer* const** rows;  // of flat
  PJRT_Event** done;          // of the devices; see launch
  pw_array** arrays;          // outs: free slots, and arrays once the core has answered
  pw_buffer** results;        // n * outs: free slots, for the results' handles
  pw_moved* moves;            // inputs that were copied
  pw_kept* kept;              // NULL without a memory limit
  bool inherits;              // some input may still fail to be made
} pw_call;

// pw_call_lower returns the arguments for the plugin's Execute.
PJRT_LoadedExecutable_Execute_Args pw_call_lower(pw_call* call);

// pw_fixed_at returns where options list an argument that may not be donated; the length of the list if they do not.
static inline size_t pw_fixed_at(const PJRT_ExecuteOptions* options, int64_t argument) {
  size_t f = 0;
  while (f < options->num_non_donatable_input_indices && options->non_donatable_input_indices[f] != argument) f++;
  return f;
}

static inline bool pw_is_fixed(const PJRT_ExecuteOptions* options, int64_t argument) {
  return pw_fixed_at(options, argument) < options->num_non_donatable_input_indices;
}

// pw_give_up drops the arrays and slots of results that will not be made.
void pw_give_up(pw_call* call);

// pw_donated tells the ledger about inputs whose bytes the run has taken over.
void pw_donated(pw_buffer** inputs, size_t n);

// pw_wrap replaces the plugin's results by handles of ours. It takes the slots.
void pw_wrap(pw_call* call, bool promises);

// pw_located adds a location to an error, unless the error comes from a run that made one of the inputs. The rest of
// the text stays the same.
PJRT_Error* pw_located(PJRT_Error* err, const PJRT_LoadedExecutable* e, const char* location, pw_buffer* const* inputs,
                       size_t num_inputs);

// pw_place_text writes a location as errors show it; nothing if it is not known.
void pw_place_text(char* text, size_t size, const PJRT_LoadedExecutable* e, const char* location);

// ---- provenance (provenance.c) ----

// pw_provenance_new returns the provenance of a run's results, with a reference; NULL if neither the run nor its inputs
// can fail any more. The run has been launched, with results of the plugin's on n devices. With location NULL the call
// is on this thread.
pw_provenance* pw_provenance_new(const PJRT_LoadedExecutable* e, const char* location,
                                 const PJRT_ExecuteOptions* options,
                                 pw_buffer* const* inputs, size_t num_inputs, PJRT_Buffer** const* results, size_t n,
                                 PJRT_Device* only);
void pw_provenance_drop(pw_provenance* provenance);
void pw_provenance_set(pw_array* array, pw_provenance* provenance);
void pw_provenance_pass(pw_buffer* from, pw_array* to);  // to is a copy of from
// The array was never made, and this is its error. False: there is no memory to keep it.
bool pw_provenance_fails(pw_array* array, PJRT_Error_Code code, const char* message);
// The event is handed out, of what is on a device: its error will be that of the provenance.
void pw_provenance_track(PJRT_Event* event, pw_provenance* provenance, PJRT_Device* device);
void pw_provenance_event(PJRT_Event* event, pw_buffer* buffer);
extern PJRT_Event* const pw_forked_event;  // of arrays in the child of a fork: it has failed
// For an error that is handed out, of a run with these inputs: if one of their provenances has failed, it replaces the
// error and returns true.
bool pw_provenance_explains(PJRT_Error** error, pw_buffer* const* inputs, size_t n);
// pw_provenance_fault returns the error of a run that made one of these; NULL if none has failed.
PJRT_Error* pw_provenance_fault(pw_buffer* const* inputs, size_t n);
PJRT_Error* pw_provenance_error(PJRT_Error* error, pw_buffer* buffer);

// pw_progress records the progress of a gang, and tells the core if it wants to know. After PW_DONE the cell is the
// core's. It may be NULL.
void pw_progress(uint64_t session, pw_cell* cell, uint64_t gang, uint32_t bits);

// A watch measures the device time of a run, and records it where a trace is taken; tells the core when all devices
// have completed a gang; and drops what the run kept until then.
typedef struct pw_watch pw_watch;
pw_watch* pw_watch_new(const PJRT_LoadedExecutable* e, PJRT_Device* only);  // NULL: no memory
// pw_watch_launch is called right before the run is launched, with its inputs, device by device: a computation does not
// take its device before they have come. Both it and pw_watch_free allow NULL.
void pw_watch_launch(pw_watch* watch, pw_buffer* const* inputs, PJRT_Buffer* const* flat, size_t num_args, bool traced);
// pw_watch_begin begins to watch a run that was launched; done are the events of its devices. The gang is 0 if no gang
// waits for it, and the cell is NULL for one that had to wait; traced is of pw_trace_run, or 0. It takes the watch, and
// what the run keeps.
void pw_watch_begin(pw_watch* watch, uint64_t gang, pw_cell* cell, pw_kept* kept, uint64_t traced, PJRT_Event** done);
void pw_watch_free(pw_watch* watch);  // of a run that was not launched

// ---- promises (promise.c) ----

// A promise is a buffer that is handed out before its contents exist. Its callback is called once, by pw_fulfill with
// the contents or by pw_fulfill_error.
PJRT_Error* pw_promise_new(PJRT_Client* client, PJRT_Memory* memory, const pw_shape* shape,
                           const int64_t* minor_to_major, PJRT_Buffer** buffer, void** callback);
PJRT_Error* pw_fulfill(PJRT_Client* client, void* callback, PJRT_Buffer* buffer);
// pw_fulfill_error fails a promise, which was made with the same memory, shape and layout, and everything that waits
// for it. XLA's plugins log each promise that is fulfilled with an error, so it is fulfilled with a buffer that has
// failed. A plugin that cannot make such a buffer, which may take as much memory as the contents, logs.
void pw_fulfill_error(PJRT_Client* client, void* callback, PJRT_Memory* memory, const pw_shape* shape,
                     const int64_t* minor_to_major, PJRT_Error_Code code, const char* message, size_t size);

// pw_queue handles a run that did not get its turn: it hands out promises, or waits. It takes the moves, the arrays and
// the slots of the results.
PJRT_Error* pw_queue(pw_call* call, const pw_turn* turn);

#endif  // PATHWAYS_CAPI_EMBEDDED_RUN_H_
