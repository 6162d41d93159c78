// Compiles programs, runs them on one device and on several, and reads what they
// give: run ADDRESS, where "" stands for this process's own devices.
#include "check.h"

static void one_device(pathways_session s) {
  pathways_executable add = compile(s, ADD, 0, NULL, 0);
  pathways_executable_info_t info = {.struct_size = sizeof info};
  OK(pathways_executable_info(add, &info));
  CHECK(info.num_devices == 1 && info.num_outputs == 1 && strcmp(info.name, "add") == 0);
  float x[] = {1, 2, 3, 4}, y[] = {10, 20, 30, 40}, z[4];
  pathways_array in[] = {vector(s, x, 4), vector(s, y, 4)}, out;
  memset(x, 0, sizeof x);  // copied
  // A chain whose links are not waited for.
  for (int i = 0; i < 10; i++) {
    OK(pathways_run(add, NULL, in, 2, &out, 1, NULL));
    OK(pathways_drop(in[0]));
    in[0] = out;
  }
  read_into(in[0], PATHWAYS_WHOLE, z, sizeof z);
  for (int i = 0; i < 4; i++) CHECK(z[i] == (float)(i + 1) + 10 * y[i]);
  pathways_array_info_t a = {.struct_size = sizeof a};
  OK(pathways_array_info(in[0], &a));
  CHECK(a.type == PATHWAYS_F32 && a.num_dims == 1 && a.dims[0] == 4 && a.num_shards == 1 && a.tiled && a.bytes == 16);
  OK(pathways_drop(in[0]));
  OK(pathways_drop(in[1]));
  OK(pathways_drop(add));
}

static void several_devices(pathways_session s) {
  int64_t rows[] = {4, 1}, columns[] = {1, 4}, dims[] = {8, 8};
  pathways_tiles outputs[] = {{2, rows}, {0, NULL}};
  pathways_executable e = compile(s, SHARDED, 4, outputs, 2);
  pathways_session_info_t si = {.struct_size = sizeof si};
  OK(pathways_session_info(s, &si));
  CHECK(si.num_devices >= 4 && strcmp(si.platform, "cpu") == 0);
  int32_t ids[4];
  for (int i = 0; i < 4; i++) {
    pathways_device_info_t d = {.struct_size = sizeof d};
    OK(pathways_device_info(s, i, &d));
    CHECK(*d.kind && d.on_host == !si.cluster);
    ids[i] = d.id;
  }
  float a[8][8], b[8][8], c[8][8], total = 0, sum;
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < 8; j++) a[i][j] = (float)(8 * i + j), b[i][j] = (float)(100 * j), total += a[i][j] + b[i][j];
  pathways_host_options o = {.struct_size = sizeof o, .data = a, .type = PATHWAYS_F32, .num_dims = 2, .dims = dims,
                             .tiles = {2, rows}, .devices = ids, .num_devices = 4};
  pathways_array in[2], out[2];
  OK(pathways_array_from_host(s, &o, &in[0]));
  o.data = b;
  o.tiles.tiles = columns;
  OK(pathways_array_from_host(s, &o, &in[1]));
  pathways_future done;
  OK(pathways_run(e, NULL, in, 2, out, 2, &done));
  WAIT(done);
  WAIT(done);  // as often as it is asked
  OK(pathways_drop(done));
  read_into(out[0], PATHWAYS_WHOLE, c, sizeof c);
  for (int i = 0; i < 8; i++)
    for (int j = 0; j < 8; j++) CHECK(c[i][j] == a[i][j] + b[i][j]);
  for (int32_t d = 0; d < 4; d++) {
    read_into(out[1], d, &sum, sizeof sum);
    CHECK(sum == total);
    float part[2][8];
    read_into(out[0], d, part, sizeof part);
    CHECK(memcmp(part, c[2 * d], sizeof part) == 0);
  }
  // Columns come back to where they were, piece by piece.
  read_into(in[1], PATHWAYS_WHOLE, c, sizeof c);
  CHECK(memcmp(b, c, sizeof b) == 0);
  int32_t where[4];
  OK(pathways_array_devices(out[0], where, 4));
  CHECK(memcmp(where, ids, sizeof ids) == 0);

  // To other devices and back.
  int32_t turned[] = {ids[3], ids[2], ids[1], ids[0]};
  pathways_array moved;
  OK(pathways_array_copy(in[0], turned, 4, &moved));
  OK(pathways_array_devices(moved, where, 4));
  CHECK(memcmp(where, turned, sizeof ids) == 0);
  read_into(moved, PATHWAYS_WHOLE, c, sizeof c);
  CHECK(memcmp(a, c, sizeof a) == 0);
  OK(pathways_session_info(s, &si));
  CHECK(si.arrays == 5 && si.executables == 1 && si.runs == 11);
  for (int i = 0; i < 2; i++) OK(pathways_drop(in[i])), OK(pathways_drop(out[i]));
  OK(pathways_drop(moved));
  OK(pathways_drop(e));
}

static const struct {
  pathways_type type;
  size_t size;
} types[] = {{PATHWAYS_BOOL, 1},   {PATHWAYS_S8, 1},    {PATHWAYS_S16, 2},    {PATHWAYS_S32, 4}, {PATHWAYS_S64, 8},
             {PATHWAYS_U8, 1},     {PATHWAYS_U16, 2},   {PATHWAYS_U32, 4},    {PATHWAYS_U64, 8}, {PATHWAYS_F16, 2},
             {PATHWAYS_F32, 4},    {PATHWAYS_F64, 8},   {PATHWAYS_BF16, 2},   {PATHWAYS_C64, 8}, {PATHWAYS_C128, 16},
             {PATHWAYS_F8E5M2, 1}, {PATHWAYS_F8E4M3FN, 1}, {PATHWAYS_S4, 1}, {PATHWAYS_U4, 1}};

// Every type, as a scalar, empty, dense, with strides, from any address, by each mode.
static void bytes_and_types(pathways_session s) {
  static char source[4096] __attribute__((aligned(64)));
  for (size_t i = 0; i < sizeof source; i++) source[i] = (char)(i % 7 & 1);
  int64_t shapes[][3] = {{0, 0, 0}, {1, 0, 0}, {1, 5, 0}, {2, 3, 4}, {2, 0, 4}};
  for (size_t t = 0; t < sizeof types / sizeof *types; t++)
    for (size_t k = 0; k < sizeof shapes / sizeof *shapes; k++)
      for (int offset = 0; offset < 2; offset++)
        for (int mode = PATHWAYS_COPY; mode <= PATHWAYS_BORROW; mode++) {
          int64_t* dims = shapes[k] + 1;
          size_t n = (size_t)shapes[k][0], size = types[t].size;
          for (size_t d = 0; d < n; d++) size *= (size_t)dims[d];
          pathways_host_options o = {.struct_size = sizeof o,
                                     .data = source + offset * (int)types[t].size,
                                     .type = types[t].type,
                                     .mode = (pathways_host_mode)mode,
                                     .num_dims = n,
                                     .dims = dims};
          pathways_array a;
          OK(pathways_array_from_host(s, &o, &a));
          char back[512];
          memset(back, 77, sizeof back);
          read_into(a, 0, back, size);
          CHECK(memcmp(back, o.data, size) == 0 && back[size] == 77);
          OK(pathways_drop(a));
        }
  int32_t matrix[4][6], columns[6][4], part[4][3];
  for (int i = 0; i < 24; i++) matrix[i / 6][i % 6] = i;
  int64_t dims[] = {6, 4}, strides[] = {4, 24};  // its transpose
  pathways_host_options o = {.struct_size = sizeof o,
                             .data = matrix,
                             .type = PATHWAYS_S32,
                             .num_dims = 2,
                             .dims = dims,
                             .byte_strides = strides};
  pathways_array a;
  OK(pathways_array_from_host(s, &o, &a));
  read_into(a, PATHWAYS_WHOLE, columns, sizeof columns);
  for (int i = 0; i < 24; i++) CHECK(columns[i % 6][i / 6] == i);
  OK(pathways_drop(a));
  int64_t half[] = {4, 3}, cut[] = {24, 4};
  o.dims = half, o.byte_strides = cut;
  OK(pathways_array_from_host(s, &o, &a));
  read_into(a, PATHWAYS_WHOLE, part, sizeof part);
  for (int i = 0; i < 12; i++) CHECK(part[i / 3][i % 3] == matrix[i / 3][i % 3]);
  OK(pathways_drop(a));
}

static void views(pathways_session s) {
  float x[] = {1, 2, 3, 4};
  pathways_executable add = compile(s, ADD, 0, NULL, 0);
  pathways_array in[] = {vector(s, x, 4), vector(s, x, 4)}, out;
  pathways_view v;
  const void* at;
  OK(pathways_run(add, NULL, in, 2, &out, 1, NULL));
  OK(pathways_array_view(out, 0, &v, &at));
  OK(pathways_drop(out));
  CHECK(((const float*)at)[3] == 8);
  OK(pathways_drop(v));
  FAILS(pathways_drop(v), PATHWAYS_INVALID_ARGUMENT, "dropped");
  FAILS(pathways_array_view(in[0], 1, &v, &at), PATHWAYS_INVALID_ARGUMENT, "no shard 1");

  static float many[8192];  // a worker of this host writes them here
  many[8191] = 7;
  pathways_array large = vector(s, many, 8192);
  OK(pathways_array_view(large, 0, &v, &at));
  OK(pathways_drop(large));
  CHECK(((const float*)at)[8191] == 7 && at != many);
  OK(pathways_drop(v));
}

int main(int argc, char** argv) {
  CHECK(argc == 2);
  CHECK(pathways_api_version() == ((uint32_t)PATHWAYS_API_MAJOR << 16 | PATHWAYS_API_MINOR));
  CHECK(pathways_has_feature("embedded") && !pathways_has_feature("telepathy"));
  pathways_session s = open_session(argv[1], 4);
  one_device(s);
  several_devices(s);
  bytes_and_types(s);
  views(s);
  OK(pathways_drop(s));
  return finish();
}
