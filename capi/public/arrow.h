// Arrow data as columns, and columns as Arrow data. The structs are those of the ABI of the Arrow C data interface.
#ifndef PATHWAYS_CAPI_PUBLIC_ARROW_H_
#define PATHWAYS_CAPI_PUBLIC_ARROW_H_

#include "public.h"

struct ArrowSchema {
  const char *format, *name, *metadata;
  int64_t flags, n_children;
  struct ArrowSchema **children, *dictionary;
  void (*release)(struct ArrowSchema*);
  void* private_data;
};

struct ArrowArray {
  int64_t length, null_count, offset, n_buffers, n_children;
  const void** buffers;
  struct ArrowArray **children, *dictionary;
  void (*release)(struct ArrowArray*);
  void* private_data;
};

// pc_column is an array of numbers inside Arrow data.
typedef struct {
  const char* name;  // the field's; "" if the data is not a record batch
  bool batch;        // one column of a record batch
  pathways_type type;
  size_t n;
  int64_t dims[PATHWAYS_MAX_DIMS];   // in the order in which they are stored
  int64_t order[PATHWAYS_MAX_DIMS];  // for each dimension of the array, its place in dims
  const char* data;
  char* bytes;  // malloc'd, if bits were unpacked
} pc_column;

// pc_arrow_read finds the columns of a record batch, or the single column that other data is. It checks everything that
// the data claims, except that its buffers are as long as its arrays need. The caller frees the list with
// pc_columns_free.
pathways_error pc_arrow_read(const struct ArrowSchema* schema, const struct ArrowArray* data, pc_column** columns,
                             size_t* n, bool* batch);
void pc_columns_free(pc_column* columns, size_t n);
// pc_column_strides writes the dimensions of a column's array, and its strides in bytes.
void pc_column_strides(const pc_column* c, int64_t* dims, int64_t* strides);

// How Arrow names types of elements: NULL, or 0, if the other side does not have the type.
const char* pc_arrow_format(pathways_type type);
pathways_type pc_arrow_type(const char* format);

extern const char pc_arrow_tensor[], pc_arrow_name[], pc_arrow_metadata[];  // words of a schema's metadata

// pc_arrow_show makes Arrow data of dense bytes: [n] as numbers or booleans, more dimensions as a tensor. drop is
// called, on any thread, when the data has been released; for booleans, which are packed, before this returns.
bool pc_arrow_show(pathways_type type, const int64_t* dims, size_t num_dims, const void* bytes,
                   void (*drop)(void* owner), void* owner, struct ArrowArray* data);
// pc_arrow_describe makes the schema of that data. Both return false, and have made and dropped nothing, if memory is
// short.
bool pc_arrow_describe(pathways_type type, const int64_t* dims, size_t num_dims, const char* name,
                       struct ArrowSchema* schema);

#endif  // PATHWAYS_CAPI_PUBLIC_ARROW_H_
