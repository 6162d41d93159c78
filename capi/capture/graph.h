// The graph: record.c and export.c make it, play.c plays it, describe.c describes it, and graph.c has its parts.
#ifndef PATHWAYS_CAPI_CAPTURE_GRAPH_H_
#define PATHWAYS_CAPI_CAPTURE_GRAPH_H_

#include "capture.h"

// pp_ref is a shard of a value, or a constant if value is PP_CONSTANT.
typedef struct {
  int32_t value, shard;
} pp_ref;
enum { PP_CONSTANT = -1 };

// pp_value is one logical array.
typedef struct {
  int32_t node;    // the node that makes it, or PP_INPUT
  int32_t output;  // which output of the node, or which input of the program
  int32_t last;    // last node that reads it, or -1
  int32_t n;       // shards
  size_t first;    // index of its first shard among those of all values
  bool kept;       // a result of the program
  bool donated;    // an input that belongs to the program
  pp_look* looks;  // n; shapes are references, layouts copies
} pp_value;
enum { PP_INPUT = -1 };

typedef enum { PP_EXECUTE, PP_COPY, PP_RESHARD } pp_kind;

typedef struct {
  pp_kind kind;
  char *name, *location;
  size_t rows, args, outs;
  pp_ref* refs;         // rows * args, row by row
  int32_t value;        // its first output; the others follow
  int32_t* dead;        // values that no later node reads
  size_t num_dead;
  PJRT_LoadedExecutable* executable;  // of PP_EXECUTE
  PJRT_Device* only;
  PJRT_ExecuteOptions options;
  int64_t* kept;        // arguments that are not donated
  void* functions;      // of the context in options; owned by the node
  PJRT_Memory** memories;  // of PP_COPY, one a row
  uint64_t plan;        // of PP_RESHARD
} pp_node;

typedef struct {
  pp_ref* refs;
  size_t n;
} pp_output;

struct pp_capture {
  uint64_t number;
  pp_program* program;  // the program under construction; the first call that is recorded sets its frontend
  size_t announced;     // how many inputs the next import makes
  bool* donated;
  int64_t begin;
  bool read;            // whether something without contents was read
  char line[PW_LOCATION];  // the line that did so first
};

struct pp_program {
  pw_numbered base;
  const pp_frontend* frontend;
  pp_node* nodes;
  size_t num_nodes, room_nodes;
  pp_value* values;
  size_t num_values, room_values, num_shards;
  PJRT_Buffer** constants;
  size_t num_constants, room_constants;
  PJRT_Buffer** returned;  // shards of results that are no values: the caller has them; NULL if one had gone
  size_t num_returned;
  int32_t* inputs;  // values
  size_t num_inputs;
  pp_output* outputs;
  size_t num_outputs;
  int64_t capture_ns, compile_ns;
  bool functions;      // some node calls functions
  _Atomic uintptr_t lowered;  // what the frontend's play has prepared
  _Atomic uint64_t sound;     // the frontend's: when its constants were there
  _Atomic bool lacking;        // captured with something that was lost already, and not played yet
};

// These return -1, false or NULL if memory is short, and then change nothing; pp_no_memory is the error for that.
//
// pp_value_new adds a value and returns its number. It copies the looks.
int32_t pp_value_new(pp_program* p, int32_t node, int32_t output, const pp_look* looks, size_t n);
// pp_value_more adds a shard to the last value.
bool pp_value_more(pp_program* p, pp_value* value, const pp_look* look);
// pp_node_new writes a node after the others. The caller counts it when it is complete.
pp_node* pp_node_new(pp_program* p, pp_kind kind, const char* name, const PJRT_ExecuteOptions* options);
PJRT_Error* pp_no_memory(size_t bytes);
void pp_node_free(const pp_program* p, pp_node* n);
void pp_buffer_free(const pp_frontend* frontend, PJRT_Buffer* buffer);

// pp_play runs a program. It takes the inputs, and writes outputs.
PJRT_Error* pp_play(pp_program* program, pw_export* const* inputs, pw_export** outputs);
char* pp_text(const pp_program* program);  // JSON, malloc'd; NULL: no memory

// pp_interrupted reports whether the user has interrupted what the calling thread does, and if so has Python raise the
// exception. It looks when *next is reached, and then moves *next on; pp_listen returns the first one.
int64_t pp_listen(void);
bool pp_interrupted(int64_t* next);

// From record.c, for export.c. All are about the calling thread's capture.
extern const char pp_nothing[];  // the error of a symbol that is used where contents are needed
PJRT_Error* pp_join(const pp_frontend* frontend, PJRT_Client* client);
PJRT_Error* pp_refer(const pp_frontend* frontend, PJRT_Buffer* buffer, int32_t node, pp_look* look, pp_ref* out);
PJRT_Error* pp_symbol_new(const pp_frontend* frontend, const pp_look* look, int32_t value, int32_t shard,
                          PJRT_Buffer** out);
PJRT_Error* pp_symbols(const pp_frontend* frontend, const pp_value* values, size_t outs, PJRT_Buffer** const* lists);
PJRT_Error* pp_events(const pp_frontend* frontend, PJRT_LoadedExecutable_Execute_Args* args);
// From export.c, for record.c.
PJRT_Error* pp_result(uint64_t array, pp_output* o, bool* symbolic);

// For pathways.h: the calling thread's capture.
char* pp_announce(size_t n, const uint8_t* donated);
char* pp_end(const uint64_t* arrays, size_t n, int32_t* results, pp_program** out);
char* pp_read_at(void);

// Plans, from export.go.
extern char* pwGoPlanHold(uint64_t plan, size_t* shards, size_t* dims);
extern void pwGoPlanFree(uint64_t plan);
extern void pwGoPlanTo(uint64_t plan, int64_t* devices, int64_t* size, char** memory);

#endif  // PATHWAYS_CAPI_CAPTURE_GRAPH_H_
