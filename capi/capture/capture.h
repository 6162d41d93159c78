// Programs: what a thread asked of a door, recorded as a graph of nodes, and
// played with other inputs. capi/python says, in pathways.h, how it is used; here
// is what a door has to do.
//
// While pp_capturing is set, a door gives its runs and copies that concern a symbol
// to the recorder instead of running them.
#ifndef PATHWAYS_CAPI_CAPTURE_CAPTURE_H_
#define PATHWAYS_CAPI_CAPTURE_CAPTURE_H_

#include "base.h"
#include "export.h"
#include "gate.h"

// pp_symbol names the shard of a value of a capture. A buffer that carries one has
// no contents: it is made by unmade, and whoever reads it gets its error.
typedef struct {
  uint64_t capture;  // each has another number
  int32_t value, shard;
} pp_symbol;

// pp_look is how a shard looks from outside.
typedef struct {
  PJRT_Device* device;
  PJRT_Memory* memory;
  pw_shape* shape;
  const int64_t* minor_to_major;  // NULL: descending
} pp_look;

// pp_executable is what the recorder needs to know of one.
typedef struct {
  PJRT_Client* client;
  const char* name;
  size_t num_devices, num_outputs;
  int64_t num_params;  // -1 where nobody knows
} pp_executable;

// pp_door is what a door does for programs. Buffers are handles of its clients.
typedef struct pp_program pp_program;  // graph.h
typedef struct {
  // As its slots, outside of captures.
  PJRT_Error* (*execute)(PJRT_LoadedExecutable_Execute_Args* args);
  PJRT_Error* (*copy)(PJRT_Buffer_CopyToMemory_Args* args);
  PJRT_Error* (*destroy)(PJRT_Buffer_Destroy_Args* args);
  // unmade makes a buffer that has an error for contents, and a symbol, or none.
  PJRT_Error* (*unmade)(const pp_look* look, PJRT_Error_Code code, const char* message, const pp_symbol* symbol,
                        PJRT_Buffer** out);
  // seen tells how a buffer looks, and gives its symbol, or NULL. False: it is gone.
  bool (*seen)(PJRT_Buffer* buffer, pp_look* look, const pp_symbol** symbol);
  // share makes another handle of a shard, whatever becomes of the first. The shard
  // is not donated as long as it lives, unless the handle itself may donate it.
  PJRT_Error* (*share)(PJRT_Buffer* buffer, bool donate, PJRT_Buffer** out);
  // A held array as handles of its shards, which the caller destroys; and one made
  // of handles, which it takes.
  size_t (*shards)(pw_held* held);
  PJRT_Error* (*open)(pw_held* held, bool donate, PJRT_Buffer** out);
  pw_held* (*close)(PJRT_Buffer* const* buffers, size_t n);
  void (*take)(pw_held* held, PJRT_Buffer** out);  // of one that close or reshard made; takes it
  bool (*fresh)(pw_held* held);                    // whether close or reshard made it
  void (*look)(pw_held* held, size_t shard, pp_look* out);
  // export_argument holds an argument of a call outside of its client. Out is set, also
  // with an error, where there is something to be dropped.
  PJRT_Error* (*export_argument)(PJRT_LoadedExecutable_Execute_Args* args, size_t argument, pw_held** out);
  // made writes the events of a call, where it asks for them, that fire when the array is there.
  PJRT_Error* (*made)(PJRT_LoadedExecutable_Execute_Args* args, pw_held* held);

  void (*describe)(PJRT_LoadedExecutable* executable, pp_executable* out);
  const pw_shape* (*param)(PJRT_LoadedExecutable* executable, size_t param);  // NULL where nobody knows
  void (*output)(PJRT_LoadedExecutable* executable, PJRT_Device* only, size_t row, size_t output, pp_look* out);
  void (*hold)(PJRT_LoadedExecutable* executable);
  void (*drop)(PJRT_LoadedExecutable* executable);
  bool (*closed)(PJRT_LoadedExecutable* executable);  // its owner has let go of it, and of what it calls
  // keep makes a context like one that this thread runs something with, and gives
  // what belongs to it, to be freed after it; NULL where there are no functions in it.
  PJRT_ExecuteContext* (*keep)(PJRT_ExecuteContext* context, void** functions);
  void (*forget)(PJRT_ExecuteContext* context);
  PJRT_Error* (*ready)(PJRT_Event** out);             // an event that has fired
  PJRT_Client* (*client)(PJRT_Device* device);
  PJRT_Device* (*where)(PJRT_Memory* memory);
  PJRT_Device* (*device)(PJRT_Client* client, int id);
  int (*id)(PJRT_Device* device);
  PJRT_Device* (*row)(PJRT_LoadedExecutable* executable, size_t row);
  PJRT_Memory* (*memory)(PJRT_Device* device, const char* kind);  // "" is the default

  // play runs all nodes at once, where the door has a way to. Shards has the handles of
  // the inputs, and gets those of what is kept. False: it has none for this program and
  // these inputs, and nothing was done. Unplay lets go of what it has made for a program.
  // Both may be NULL.
  bool (*play)(pp_program* program, PJRT_Buffer** shards, PJRT_Error** error);
  void (*unplay)(pp_program* program);
} pp_door;

// What the calling thread captures, or NULL.
typedef struct pp_capture pp_capture;
extern __thread pp_capture* pp_capturing __attribute__((tls_model("initial-exec")));

// What a door's slots do while pp_capturing is set.
PJRT_Error* pp_execute(const pp_door* door, PJRT_LoadedExecutable_Execute_Args* args);
PJRT_Error* pp_copy(const pp_door* door, PJRT_Buffer* buffer, PJRT_Memory* memory, PJRT_Buffer** out);
bool pp_is_symbol(const pp_door* door, PJRT_Buffer* buffer);
// pp_reads is for whatever waits for or reads a buffer. Where that has a symbol,
// pathways_capture_end gives no program, also where the caller has passed over the
// error: pp_read notes the line.
void pp_read(void);
static inline void pp_reads(const pp_symbol* symbol) {
  if (pp_capturing && symbol) pp_read();
}
// pp_export holds arrays of which some are symbols. pp_input says whether the import
// that the thread makes is to give inputs of its capture, which pp_inputs makes.
bool pp_any_symbol(const pp_door* door, PJRT_LoadedExecutable_Execute_Args* args);
PJRT_Error* pp_export(const pp_door* door, PJRT_LoadedExecutable_Execute_Args* args);
bool pp_input(void);
PJRT_Error* pp_inputs(const pp_door* door, PJRT_LoadedExecutable_Execute_Args* args);
// pp_through is Execute of a program that is not run (through.c).
PJRT_Error* pp_through(const pp_door* door, pw_port port, PJRT_LoadedExecutable_Execute_Args* args);
// pp_import gives arrays that were held as symbols; it takes them.
bool pp_symbolic(const pw_held* held);
PJRT_Error* pp_import(const pp_door* door, PJRT_LoadedExecutable_Execute_Args* args, pw_held* const* held);
// pp_compiled counts the time of a compile that began at pw_clock's begin, for captures that it may be a part of.
void pp_compiled(int64_t begin);

// What capi/public does, whose arrays are handles of a door's from the first to the
// last. pp_begin begins a capture on the calling thread, or gives a refusal; pp_leave
// ends it, if there is one, without a program.
char* pp_begin(void);
void pp_leave(void);
// pp_input_new gives the capture an input of n shards that look so.
PJRT_Error* pp_input_new(const pp_door* door, PJRT_Client* client, const pp_look* looks, size_t n, PJRT_Buffer** out);
// pp_finish ends the capture with n results, of counts[i] shards each, and gives the
// program with one reference. With an error the capture goes on.
PJRT_Error* pp_finish(const pp_door* door, PJRT_Buffer* const* shards, const size_t* counts, size_t n,
                      pp_program** out);
// pp_play_shards runs a program of such a client. Inputs and outputs are shards, one
// array's after the other's; inputs stay the caller's.
PJRT_Error* pp_play_shards(pp_program* program, PJRT_Buffer* const* inputs, PJRT_Buffer** outputs);
void pp_program_drop(pp_program* program);
size_t pp_num_nodes(const pp_program* program);

// pp_client_ended lets go of whatever is kept of a client.
void pp_client_ended(const PJRT_Client* client);
int64_t pp_count(void);
char* pp_refusal(PJRT_Error* error);  // "CODE: text", malloc'd; takes the error
PJRT_Error* pp_error(char* refusal);  // the other way; takes the refusal

#endif  // PATHWAYS_CAPI_CAPTURE_CAPTURE_H_
