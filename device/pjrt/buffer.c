#include "call.h"

pwdrv_status pwdrv_from_host(const PJRT_Api* api, PJRT_Client* client, const void* data, int type, const int64_t* dims,
                             size_t num_dims, int semantics, PJRT_Device* device, PJRT_Memory* memory,
                             PJRT_Event** done, PJRT_Buffer** out) {
  PWDRV_ARGS(PJRT_Client_BufferFromHostBuffer);
  args.client = client;
  args.data = data;
  args.type = (PJRT_Buffer_Type)type;
  args.dims = dims;
  args.num_dims = num_dims;
  args.host_buffer_semantics = (PJRT_HostBufferSemantics)semantics;
  args.device = device;
  args.memory = memory;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Client_BufferFromHostBuffer);
  PWDRV_MADE(events, *done = args.done_with_host_buffer);
  PWDRV_MADE(buffers, *out = args.buffer);
  return status;
}

const void* pwdrv_zeros(void) {
  static const char zeros[PWDRV_ZEROS];
  return zeros;
}

pwdrv_status pwdrv_failed_buffer(const PJRT_Api* api, PJRT_Client* client, int code, const char* message,
                                 size_t message_size, int type, const int64_t* dims, size_t num_dims,
                                 PJRT_Memory* memory, PJRT_Buffer** out) {
  PWDRV_ARGS(PJRT_Client_CreateErrorBuffer);
  args.client = client;
  args.error_code = (PJRT_Error_Code)code;
  args.error_message = message;
  args.error_message_size = message_size;
  args.shape_element_type = (PJRT_Buffer_Type)type;
  args.shape_dims = dims;
  args.shape_num_dims = num_dims;
  args.memory = memory;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Client_CreateErrorBuffer);
  PWDRV_MADE(buffers, *out = args.buffer);
  return status;
}

pwdrv_status pwdrv_to_host(const PJRT_Api* api, PJRT_Buffer* buffer, void* dst, size_t size, size_t num_dims,
                           PJRT_Event** event) {
  int64_t order[num_dims + 1];
  for (size_t i = 0; i < num_dims; i++) order[i] = (int64_t)(num_dims - 1 - i);
  // Without a layout the plugin would write the elements in the device's own order.
  PJRT_Buffer_MemoryLayout layout = {.struct_size = PJRT_Buffer_MemoryLayout_STRUCT_SIZE,
                                     .type = PJRT_Buffer_MemoryLayout_Type_Tiled};
  layout.tiled.struct_size = PJRT_Buffer_MemoryLayout_Tiled_STRUCT_SIZE;
  layout.tiled.minor_to_major = order;
  layout.tiled.minor_to_major_size = num_dims;
  PWDRV_ARGS(PJRT_Buffer_ToHostBuffer);
  args.src = buffer;
  args.host_layout = &layout;
  args.dst = dst;
  args.dst_size = size;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Buffer_ToHostBuffer);
  PWDRV_MADE(events, *event = args.event);
  return status;
}

pwdrv_status pwdrv_copy_to_memory(const PJRT_Api* api, PJRT_Buffer* buffer, PJRT_Memory* memory, PJRT_Buffer** out) {
  PWDRV_DO(PJRT_Buffer_CopyToMemory, args.buffer = buffer; args.dst_memory = memory,
           PWDRV_MADE(buffers, *out = args.dst_buffer));
}

pwdrv_status pwdrv_copy_to_device(const PJRT_Api* api, PJRT_Buffer* buffer, PJRT_Device* device, PJRT_Buffer** out) {
  PWDRV_DO(PJRT_Buffer_CopyToDevice, args.buffer = buffer; args.dst_device = device,
           PWDRV_MADE(buffers, *out = args.dst_buffer));
}

pwdrv_status pwdrv_buffer_bytes(const PJRT_Api* api, PJRT_Buffer* buffer, size_t* bytes) {
  PWDRV_DO(PJRT_Buffer_OnDeviceSizeInBytes, args.buffer = buffer, *bytes = args.on_device_size_in_bytes);
}

pwdrv_status pwdrv_buffer_order(const PJRT_Api* api, PJRT_Buffer* buffer, int64_t* order, size_t num_dims) {
  PWDRV_ARGS(PJRT_Buffer_GetMemoryLayout);
  args.buffer = buffer;
  pwdrv_status status = PWDRV_CALL(api, PJRT_Buffer_GetMemoryLayout);
  if (PWDRV_FAILED(status)) return status;
  for (size_t i = 0; i < num_dims; i++) order[i] = (int64_t)(num_dims - 1 - i);
  if (args.layout.type == PJRT_Buffer_MemoryLayout_Type_Tiled && args.layout.tiled.minor_to_major_size == num_dims &&
      num_dims > 0) {
    memcpy(order, args.layout.tiled.minor_to_major, num_dims * sizeof *order);
  }
  return status;
}

pwdrv_status pwdrv_buffer_pointer(const PJRT_Api* api, PJRT_Buffer* buffer, void** pointer) {
  PWDRV_DO(PJRT_Buffer_UnsafePointer, args.buffer = buffer, *pointer = (void*)args.buffer_pointer);
}

pwdrv_status pwdrv_buffer_ready(const PJRT_Api* api, PJRT_Buffer* buffer, PJRT_Event** event) {
  PWDRV_DO(PJRT_Buffer_ReadyEvent, args.buffer = buffer, PWDRV_MADE(events, *event = args.event));
}

pwdrv_status pwdrv_buffer_deleted(const PJRT_Api* api, PJRT_Buffer* buffer, bool* deleted) {
  PWDRV_DO(PJRT_Buffer_IsDeleted, args.buffer = buffer, *deleted = args.is_deleted);
}

pwdrv_status pwdrv_buffer_destroy(const PJRT_Api* api, PJRT_Buffer* buffer) {
  PWDRV_COUNT(buffers, -1);
  PWDRV_DO(PJRT_Buffer_Destroy, args.buffer = buffer);
}
