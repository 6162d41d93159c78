// What a run at once (execute.c) and a run that waits for its turn (wait.c) have in
// common.
#ifndef PATHWAYS_CAPI_EMBEDDED_RUN_H_
#define PATHWAYS_CAPI_EMBEDDED_RUN_H_

#include "embedded.h"

// A buffer that was brought to the device that needs it.
typedef struct pw_moved {
  struct pw_moved* next;
  PJRT_Buffer* buffer;
} pw_moved;

void pw_moves_free(pw_moved* list);
void pw_destroy_buffer(PJRT_Buffer* under);
void pw_destroy_event(PJRT_Event* event);

// pw_call is one Execute: what it was called with, and what its steps have found and made.
// Its lists are the caller's for as long as the call lasts.
typedef struct {
  PJRT_LoadedExecutable_Execute_Args* args;  // of this version
  PJRT_ExecuteOptions options;               // of this version
  PJRT_LoadedExecutable* e;
  PJRT_Device* only;  // that it runs on, alone; or NULL
  size_t n, m, outs;  // devices; and arguments and results of each
  pw_buffer** inputs;         // n * m, device by device
  PJRT_Buffer** flat;         // the plugin's, in the same order, each on its device
  PJRT_Buffer* const** rows;  // of flat
  PJRT_Event** done;          // of the devices; see launch
  pw_array** arrays;          // outs: free slots, and from the core's answer on the results
  pw_buffer** results;        // n * outs free slots, for the results' handles
  pw_moved* moves;            // inputs that were brought
  bool inherits;              // what it reads may yet fail to be made
} pw_call;

// pw_call_lower returns what the plugin is to be called with.
PJRT_LoadedExecutable_Execute_Args pw_call_lower(pw_call* call);

// pw_donated tells the store of inputs whose bytes the run has taken over.
void pw_donated(pw_buffer** inputs, size_t n);

// pw_wrap puts handles of ours in the place of the plugin's results. It takes the slots.
void pw_wrap(pw_call* call, bool promises);

// pw_located adds a location to an error, unless it is that of a run that made one of
// the inputs. The text before stays as it is.
PJRT_Error* pw_located(PJRT_Error* err, const PJRT_LoadedExecutable* e, const char* location, pw_buffer* const* inputs,
                       size_t num_inputs);

// pw_place_text writes a location as errors have it; nothing where it is not known.
void pw_place_text(char* text, size_t size, const PJRT_LoadedExecutable* e, const char* location);

// ---- origins (origin.c) ----

// pw_origin_new gives the origin of a run's results, held: NULL where neither the run
// nor what it reads can fail any more. The run is as it was launched, with results of
// the plugin's on n devices. Location NULL: the call is on this thread.
pw_origin* pw_origin_new(const PJRT_LoadedExecutable* e, const char* location, const PJRT_ExecuteOptions* options,
                         pw_buffer* const* inputs, size_t num_inputs, PJRT_Buffer** const* results, size_t n);
void pw_origin_drop(pw_origin* origin);
void pw_origin_set(pw_array* array, pw_origin* origin);
void pw_origin_pass(pw_buffer* from, pw_array* to);  // to is made of from
// It was never made. False: there is no memory to say so.
bool pw_origin_fails(pw_array* array, PJRT_Error_Code code, const char* message);
// An event that is handed out: its error will be the origin's.
void pw_origin_track(PJRT_Event* event, pw_origin* origin);
void pw_origin_event(PJRT_Event* event, pw_buffer* buffer);
extern PJRT_Event* const pw_forked_event;  // of arrays in the child of a fork: it has failed
// An error that is handed out, of what reads these: it becomes the origin's, and true
// is said, where one of their origins has failed.
bool pw_origin_explains(PJRT_Error** error, pw_buffer* const* inputs, size_t n);
// pw_origin_fault gives the error of a run that made one of these, where it has failed.
PJRT_Error* pw_origin_fault(pw_buffer* const* inputs, size_t n);
PJRT_Error* pw_origin_error(PJRT_Error* error, pw_buffer* buffer);

// A watch has the core learn when all devices are through with a gang.
typedef struct pw_watch pw_watch;
pw_watch* pw_watch_new(void);  // NULL: no memory
// pw_watch_begin has it tell. The cell is NULL for a gang that had to wait.
void pw_watch_begin(pw_watch* watch, uint64_t session, uint64_t gang, pw_cell* cell, PJRT_Event** done, size_t n);

// ---- promises (promise.c) ----

// A promise is a buffer that is handed out before what it stands for is there. Its
// callback is called once, by pw_fulfil with the contents or by pw_fulfil_error.
PJRT_Error* pw_promise_new(PJRT_Client* client, PJRT_Memory* memory, const pw_shape* shape,
                           const int64_t* minor_to_major, PJRT_Buffer** buffer, void** callback);
PJRT_Error* pw_fulfil(PJRT_Client* client, void* callback, PJRT_Buffer* buffer);
// pw_fulfil_error has everything that waits for a promise, which was made with the same
// memory, shape and layout, get an error. XLA's plugins log each promise that is
// fulfilled with an error, so what fulfils it is a buffer that has failed. Where the
// plugin makes none, which may take as much memory as contents would, it logs.
void pw_fulfil_error(PJRT_Client* client, void* callback, PJRT_Memory* memory, const pw_shape* shape,
                     const int64_t* minor_to_major, PJRT_Error_Code code, const char* message, size_t size);

// pw_queue sees to a run that was not given its turn: it hands out promises, or waits. It
// takes the moves, the arrays and the slots of the results.
PJRT_Error* pw_queue(pw_call* call, const pw_turn* turn);

#endif  // PATHWAYS_CAPI_EMBEDDED_RUN_H_
