// Programs: what a thread asks of a frontend, recorded as a graph of nodes, and played with other inputs. pathways.h in
// capi/python says how programs are used; this file says what a frontend has to implement.
//
// While pp_capturing is set, a frontend passes those of its runs and copies that involve a symbol to the recorder
// instead of running them.
#ifndef PATHWAYS_CAPI_CAPTURE_CAPTURE_H_
#define PATHWAYS_CAPI_CAPTURE_CAPTURE_H_

#include "base.h"
#include "export.h"
#include "gate.h"

// pp_symbol names a shard of a value of a capture. A buffer that carries a symbol has no contents: unmade makes it, and
// every read of it returns its error.
typedef struct {
  uint64_t capture;  // unique for each capture
  int32_t value, shard;
} pp_symbol;

// pp_look describes a shard.
typedef struct {
  PJRT_Device* device;
  PJRT_Memory* memory;
  pw_shape* shape;
  const int64_t* minor_to_major;  // NULL: descending
} pp_look;

// pp_executable is what the recorder needs to know about an executable.
typedef struct {
  PJRT_Client* client;
  const char* name;
  size_t num_devices, num_outputs;
  int64_t num_params;  // -1 where it is not known
} pp_executable;

// pp_frontend is what a frontend implements for programs. Buffers are handles of its clients.
typedef struct pp_program pp_program;  // graph.h
typedef struct {
  // The frontend's own slots, as they are outside of captures.
  PJRT_Error* (*execute)(PJRT_LoadedExecutable_Execute_Args* args);
  PJRT_Error* (*copy)(PJRT_Buffer_CopyToMemory_Args* args);
  PJRT_Error* (*destroy)(PJRT_Buffer_Destroy_Args* args);
  // unmade makes a buffer whose contents are an error; symbol may be NULL.
  PJRT_Error* (*unmade)(const pp_look* look, PJRT_Error_Code code, const char* message, const pp_symbol* symbol,
                        PJRT_Buffer** out);
  // seen writes what a buffer looks like, and its symbol or NULL. It returns false if the buffer was destroyed.
  bool (*seen)(PJRT_Buffer* buffer, pp_look* look, const pp_symbol** symbol);
  // share makes another handle of a shard, independent of the first. While it lives the shard is not donated, unless
  // donate allows the new handle itself to be donated.
  PJRT_Error* (*share)(PJRT_Buffer* buffer, bool donate, PJRT_Buffer** out);
  // An exported array: open makes handles of its shards, which the caller destroys; close makes an exported array of
  // handles, which it takes.
  size_t (*shards)(pw_export* exported);
  PJRT_Error* (*open)(pw_export* exported, bool donate, PJRT_Buffer** out);
  pw_export* (*close)(PJRT_Buffer* const* buffers, size_t n);
  void (*take)(pw_export* exported, PJRT_Buffer** out);  // of one that close or reshard made, which it takes
  bool (*fresh)(pw_export* exported);                    // whether close or reshard made it
  void (*look)(pw_export* exported, size_t shard, pp_look* out);
  // export_argument exports an argument of a call. Out may be set even if there is an error; the caller drops it then.
  PJRT_Error* (*export_argument)(PJRT_LoadedExecutable_Execute_Args* args, size_t argument, pw_export** out);
  // made writes the events that a call asks for; they fire when the array is ready.
  PJRT_Error* (*made)(PJRT_LoadedExecutable_Execute_Args* args, pw_export* exported);

  void (*describe)(PJRT_LoadedExecutable* executable, pp_executable* out);
  const pw_shape* (*param)(PJRT_LoadedExecutable* executable, size_t param);  // NULL if it is not known
  void (*output)(PJRT_LoadedExecutable* executable, PJRT_Device* only, size_t row, size_t output, pp_look* out);
  void (*hold)(PJRT_LoadedExecutable* executable);
  void (*drop)(PJRT_LoadedExecutable* executable);
  bool (*closed)(PJRT_LoadedExecutable* executable);  // its owner has released it and the functions that it calls
  // keep makes a context like one that this thread runs something with. functions gets what belongs to the context, to
  // be freed after it, or NULL where the context has no functions.
  PJRT_ExecuteContext* (*keep)(PJRT_ExecuteContext* context, void** functions);
  void (*forget)(PJRT_ExecuteContext* context);
  PJRT_Error* (*ready)(PJRT_Event** out);             // an event that has fired
  PJRT_Client* (*client)(PJRT_Device* device);
  PJRT_Device* (*where)(PJRT_Memory* memory);
  PJRT_Device* (*device)(PJRT_Client* client, int id);
  int (*id)(PJRT_Device* device);
  PJRT_Device* (*row)(PJRT_LoadedExecutable* executable, size_t row);
  PJRT_Memory* (*memory)(PJRT_Device* device, const char* kind);  // "" is the default

  // play runs all nodes at once, if the frontend can. shards has the handles of the inputs and receives those of what
  // is kept. It returns false, and has done nothing, if it cannot play this program with these inputs. unplay frees
  // what play prepared for a program. Both may be NULL.
  bool (*play)(pp_program* program, PJRT_Buffer** shards, PJRT_Error** error);
  void (*unplay)(pp_program* program);
  // lost reports whether a constant of a program was lost with its device, or may have been; it costs a comparison
  // while nothing was lost since it last said no. NULL where devices are not lost.
  bool (*lost)(pp_program* program);
} pp_frontend;

// What the calling thread captures, or NULL.
typedef struct pp_capture pp_capture;
extern __thread pp_capture* pp_capturing __attribute__((tls_model("initial-exec")));

// What a frontend's slots call while pp_capturing is set.
PJRT_Error* pp_execute(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args);
PJRT_Error* pp_copy(const pp_frontend* frontend, PJRT_Buffer* buffer, PJRT_Memory* memory, PJRT_Buffer** out);
bool pp_is_symbol(const pp_frontend* frontend, PJRT_Buffer* buffer);
// pp_reads is called by all slots that wait for a buffer or read it. Once a buffer with a symbol is read, the capture
// cannot become a program (pathways_capture_end), even if the caller ignores the error of the read; pp_read notes the
// line for that.
void pp_read(void);
static inline void pp_reads(const pp_symbol* symbol) {
  if (pp_capturing && symbol) pp_read();
}
// pp_export exports arrays of which some are symbols. pp_input reports whether the import that the thread makes next
// makes inputs of its capture; if so, pp_inputs makes them.
bool pp_any_symbol(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args);
PJRT_Error* pp_export(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args);
bool pp_input(void);
PJRT_Error* pp_inputs(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args);
// pp_through is Execute of an export or import program, which is not run (through.c).
PJRT_Error* pp_through(const pp_frontend* frontend, pw_port port, PJRT_LoadedExecutable_Execute_Args* args);
// pp_import imports arrays that were exported as symbols; it takes them.
bool pp_symbolic(const pw_export* exported);
PJRT_Error* pp_import(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args,
                      pw_export* const* exported);
// pp_compiled adds the time of a compile, which began at begin by pw_clock, for captures that include it.
void pp_compiled(int64_t begin);

// For capi/public, whose arrays stay handles of a frontend throughout. pp_begin begins a capture on the calling thread,
// or returns a refusal; pp_leave ends the capture, if there is one, without a program.
char* pp_begin(void);
void pp_leave(void);
// pp_input_new adds to the capture an input of n shards with these looks.
PJRT_Error* pp_input_new(const pp_frontend* frontend, PJRT_Client* client, const pp_look* looks, size_t n,
                         PJRT_Buffer** out);
// pp_finish ends the capture with n results, of counts[i] shards each, and writes the program with one reference. With
// an error the capture continues.
PJRT_Error* pp_finish(const pp_frontend* frontend, PJRT_Buffer* const* shards, const size_t* counts, size_t n,
                      pp_program** out);
// pp_play_shards runs a program of such a client. Inputs and outputs are lists of shards, array after array; the caller
// keeps the inputs.
PJRT_Error* pp_play_shards(pp_program* program, PJRT_Buffer* const* inputs, PJRT_Buffer** outputs);
void pp_program_drop(pp_program* program);
size_t pp_num_nodes(const pp_program* program);

// pp_client_ended drops everything that is kept of a client.
void pp_client_ended(const PJRT_Client* client);
int64_t pp_count(void);
char* pp_refusal(PJRT_Error* error);  // "CODE: text", malloc'd; takes the error
PJRT_Error* pp_error(char* refusal);  // the reverse; takes the refusal

#endif  // PATHWAYS_CAPI_CAPTURE_CAPTURE_H_
